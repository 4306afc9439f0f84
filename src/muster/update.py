"""One optimizer step from a batch and a recipe.

The gradient doesn't depend on how the batch is cut into micro-batches: the totals are counted over
the whole update before the first backward.

Axes: B rows (one completion each), T completion positions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from muster.algo import metrics as sums
from muster.algo.recipes import Recipe, loss
from muster.algo.tokens import Tokens, Totals
from muster.batch import Batch, Row, collate, head_batches, micro_batches, rows_of_share
from muster.clock import Clock
from muster.devices import moved
from muster.dist import exchange, rank, sum_over_ranks, world_size
from muster.errors import TrainingError
from muster.logprobs import chunk_tokens
from muster.memory import until_it_fits
from muster.policy import Policy, Scores
from muster.records import Completion

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What an update minimises."""

    recipe: Recipe
    temperature: float
    kl_coef: float = 0.0
    """Of the KL term in the loss; 0 where it is off or in the reward."""
    entropy_coef: float = 0.0


class Updated(NamedTuple):
    """What an update did."""

    loss: float
    grad_norm: float
    """Before clipping; not finite where the step was skipped."""
    stepped: bool
    """False where the gradient was not finite: the weights are as they were."""
    stats: Mapping[str, sums.Metric]
    scores: Scores
    """Of the batch's rows, from this update's forward pass."""


@dataclass(kw_only=True)
class Budget:
    """Tokens of one packed forward; halved for good when a device runs out of memory."""

    tokens: int
    enough: int | None = None
    """Tokens from which on more are no faster: another group is then left to the next forward."""


def score_in_parts(policy: Policy, batch: Batch, temperature: float, budget: Budget) -> Scores:
    """Logprobs and entropies of all rows, without gradient, a micro-batch at a time."""

    def score(mine: Batch) -> _Part:
        # Without activations to keep, more rows cost no memory to speak of.
        cuts = list(micro_batches(mine, budget.tokens, policy.packs))
        num_missing = _missing_passes(policy, len(cuts))
        with torch.no_grad():
            parts = [policy.score(mine.select(rows), temperature=temperature) for rows in cuts]
            _stand_by(policy, num_missing)
        return _Part(0.0, {}, _joined(policy, mine, parts))

    return _in_shares(policy, batch, lambda mine: _within_memory(policy, lambda: score(mine), budget)).scores


class _Part(NamedTuple):
    """What a pass over some rows gave."""

    loss: float
    stats: Mapping[str, sums.Metric]
    scores: Scores


def _joined(policy: Policy, batch: Batch, parts: Sequence[Scores]) -> Scores:
    """The scores of micro-batches as those of all rows, of which there may be none."""
    if not parts:
        dtype = torch.float64 if next(policy.head.parameters()).dtype == torch.float64 else torch.float32
        empty = torch.zeros(0, batch.ids.shape[1], dtype=dtype)
        return Scores(empty, empty, empty.bool())
    return Scores(*(torch.cat(values).cpu() for values in zip(*parts, strict=True)))


def _missing_passes(policy: Policy, num_passes: int) -> int:
    """How many passes the rank with the most has beyond so many; 0 where ranks need not meet in them."""
    if policy.held.rows is None:
        return 0
    return max(cast(list[int], exchange(lambda: num_passes))) - num_passes


def _stand_by(policy: Policy, num_passes: int) -> None:
    """Takes part in passes that other ranks have rows for: with one token, whose gradient is zero."""
    token = Completion(ids=(0,), sampler_logprobs=(0.0,), finish_reason="stop", version=0)
    for _ in range(num_passes):
        logits = policy.logits(policy.states(collate([(0,)], [Row(0, token, 0.0)])))
        if logits.requires_grad:
            logits.backward(torch.zeros_like(logits))


def _in_shares(policy: Policy, batch: Batch, work: Callable[[Batch], _Part]) -> _Part:
    """What the work gives for all rows; every rank does its share of them and learns of the rest."""
    if world_size() == 1:
        return work(batch)
    rows = rows_of_share(batch, rank(), world_size())
    held: list[_Part] = []

    def mine() -> object:
        held.append(work(batch.select(rows)))
        return {"loss": held[0].loss, "stats": sums.to_plain(held[0].stats)}

    total = 0.0
    stats: dict[str, sums.Metric] = {}
    for received in cast(list[dict[str, Any]], exchange(mine, meets=policy.held.rows is not None)):
        total += received["loss"]
        stats = sums.merge(stats, sums.from_plain(received["stats"]))
    place = torch.tensor(rows, dtype=torch.long)
    # Of every row but its own a rank holds zeros, so that the sum is each row's value to the last bit.
    scores = [
        sum_over_ranks(numbers.new_zeros(batch.ids.shape).index_copy(0, place, numbers)).to(values.dtype)
        for values in held[0].scores
        for numbers in [values.byte() if values.dtype == torch.bool else values]
    ]
    return _Part(total, stats, Scores(*scores))


def _within_memory(policy: Policy, work: Callable[[], Result], budget: Budget) -> Result:
    """What the work gives; while the device runs out of memory, the budget is halved and it starts again.

    Ranks that divide the weights meet within the work, so that none of them can start again alone.
    """

    def halve() -> bool:
        if policy.held.rows is not None:
            raise TrainingError(
                f"rank {rank()} ran out of memory at {budget.tokens:,} tokens a micro-batch, of which "
                f"each rank may hold one. Go on with --resume --run.budget_tokens "
                f"{max(1, budget.tokens // 2)}, or on more ranks."
            )
        fits_less = budget.tokens > 1
        budget.tokens = max(1, budget.tokens // 2)
        return fits_less

    return until_it_fits(work, halve)


def _unchecked(stats: Mapping[str, sums.Metric]) -> None:
    """No objection."""


def update(
    policy: Policy,
    optimizer: Optimizer,
    batch: Batch,
    totals: Totals,
    objective: Objective,
    *,
    max_grad_norm: float,
    budget: Budget,
    clock: Clock,
    check: Callable[[Mapping[str, sums.Metric]], None] = _unchecked,
) -> Updated:
    """Steps the optimizer on the batch, unless the loss or its gradient is not finite.

    `check` is given the statistics of the forward passes before any weight moves, and may raise. Running
    out of memory on a device zeroes the gradients, halves the budget and does the update again: the
    result is the same.
    """
    threshold = _gate_threshold(policy, batch, objective, budget, clock)

    def accumulate(mine: Batch) -> _Part:
        optimizer.zero_grad(set_to_none=True)
        return _accumulate(policy, mine, totals, objective, threshold, budget, clock)

    total, stats, scores = _in_shares(
        policy, batch, lambda mine: _within_memory(policy, lambda: accumulate(mine), budget)
    )
    check(stats)
    params = [param for _, param in policy.trainable()]
    with clock.phase("optimizer"):
        policy.held.sum_gradients()
        norm = _clip(params, max_grad_norm, is_divided=policy.held.rows is not None)
        stepped = math.isfinite(norm) and math.isfinite(total)
        if stepped:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return Updated(total, norm, stepped, stats, scores)


def _clip(params: list[nn.Parameter], max_norm: float, *, is_divided: bool) -> float:
    """The gradient's norm as it was; above the greatest allowed, the gradient is scaled down to that.

    Where it is divided among ranks, each scales its part by the norm of the whole.
    """
    found = [param.grad for param in params if param.grad is not None]
    norm = torch.nn.utils.get_total_norm(found, foreach=True)
    if is_divided:
        norm = sum_over_ranks(norm.double().square()).sqrt().to(norm.dtype)
    if not float(norm) <= max_norm:
        torch.nn.utils.clip_grads_with_norm_(params, max_norm, norm, foreach=True)
    return float(norm)


def _accumulate(
    policy: Policy,
    batch: Batch,
    totals: Totals,
    objective: Objective,
    threshold: float,
    budget: Budget,
    clock: Clock,
) -> _Part:
    """Forward and backward over every micro-batch: the loss, its statistics and the scores."""
    total = 0.0
    stats: dict[str, sums.Metric] = {}
    parts: list[Scores] = []
    cuts = list(micro_batches(batch, budget.tokens, policy.packs, budget.enough))
    num_missing = _missing_passes(policy, len(cuts))
    for rows in cuts:
        part = batch.select(rows)
        # Ranks that divide the weights have hooks that wait for each gradient.
        with policy.ways.summing(in_place=policy.held.rows is None):
            value, scores = _pass(policy, part, totals, objective, threshold, clock)
        total += value
        tokens = tokens_of(part, scores)
        stats = sums.merge(
            stats, sums.token_metrics(tokens, objective.recipe.objective, objective.recipe.correction)
        )
        parts.append(Scores(*(values.cpu() for values in scores)))
    _stand_by(policy, num_missing)
    return _Part(total, stats, _joined(policy, batch, parts))


def _pass(
    policy: Policy, part: Batch, totals: Totals, objective: Objective, threshold: float, clock: Clock
) -> tuple[float, Scores]:
    """Forward and backward over one micro-batch: its part of the loss, and its scores, detached.

    The loss of some rows needs no others, so the head goes forward and backward a few rows at a time,
    down to the hidden states: their logits are gone before the next are formed, and none is formed twice.
    """
    with clock.phase("forward"):
        states = policy.states(part)
    gradient = torch.zeros_like(states)
    total, start = 0.0, 0
    parts: list[Scores] = []
    for rows in head_batches(part, chunk_tokens(policy.num_vocab)):
        few = part.select(rows)
        span = slice(start, start := start + int(few.mask.sum()))
        with clock.phase("forward"):
            leaf = states[span].detach().requires_grad_()
            scores = policy.scores_of(
                leaf, few, temperature=objective.temperature, entropy_gradient=objective.entropy_coef != 0
            )
            value = loss(
                tokens_of(few, scores),
                objective.recipe,
                totals,
                kl_coef=objective.kl_coef,
                entropy_coef=objective.entropy_coef,
                gate_threshold=threshold,
            )
        with clock.phase("backward"):
            value.backward()
            if leaf.grad is not None:
                gradient[span] = leaf.grad
        total += value.item()
        parts.append(Scores(*(values.detach() for values in scores)))
    if states.requires_grad:
        with clock.phase("backward"):
            states.backward(gradient)
    return total, Scores(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _gate_threshold(
    policy: Policy, batch: Batch, objective: Objective, budget: Budget, clock: Clock
) -> float:
    """The one number a gate needs of the whole update; costs a pass where a gate asks for it."""
    find = objective.recipe.gate.threshold
    if find is None:
        return 0.0
    with clock.phase("gate"):
        scores = score_in_parts(policy, batch, objective.temperature, budget)
    return find(scores.entropy[batch.mask])


def tokens_of(batch: Batch, scores: Scores) -> Tokens:
    """What a recipe reads; the old policy is the current one where the batch names no other."""
    device = scores.logprobs.device

    def here(values: Tensor | None) -> Float[Tensor, "B T"] | None:
        return None if values is None else moved(values, device)

    old = here(batch.old_logprobs)
    return Tokens(
        logprobs=scores.logprobs,
        old_logprobs=scores.logprobs.detach() if old is None else old,
        sampler_logprobs=moved(batch.sampler_logprobs, device),
        ref_logprobs=here(batch.ref_logprobs),
        entropy=scores.entropy,
        advantages=moved(batch.advantages, device),
        mask=moved(batch.mask, device),
    )
