"""What multiplies each token's log-probability gradient in the loss, from stored logprobs.

    coefficient[b, t] = d loss / d logprobs[b, t]

by autograd through the recipe itself, in float64, with its weights and the totals of the update that the
rollout was in. Negative where a token is made likelier. Of an update, the entropy bonus is left out: it
acts on the distribution, not through the sampled token.

Axes: P prompts, G group, B rows (one completion each), T completion positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from muster.algo.filters import has_signal
from muster.algo.metrics import Metric, Stat, token_metrics
from muster.algo.recipes import loss
from muster.algo.tokens import Tokens, Totals
from muster.batch import Batch
from muster.errors import DataError
from muster.judge import Judge, Verdict
from muster.learn import minibatches, present, taking_part
from muster.loop import kl_penalty, whole_batch
from muster.records import Group, Trace
from muster.runstate import Plan
from muster.update import Objective


@dataclass(frozen=True, kw_only=True)
class Side:
    """How one side turns scores into coefficients."""

    judge: Judge
    objective: Objective
    plan: Plan
    limit: int
    """Longest completion, in tokens: what `by_limit` divides by."""


class Coefficients(NamedTuple):
    """Of the tokens of a step's rollouts."""

    values: Float[Tensor, "B T"]
    """0 for a token without gradient, NaN for one of which what it takes was not recorded."""
    mask: Bool[Tensor, "B T"]
    """True where there is a token."""
    clipped_low: int
    clipped_high: int
    tokens: int
    """Sent through the update, and known."""


def judged(side: Side, groups: Sequence[Group], traces: Sequence[Sequence[Trace]]) -> Verdict:
    """The advantages of the groups by the side's settings; DataError where a KL penalty can't be told."""
    batch = whole_batch(groups)
    if not side.plan.kl_in_reward:
        return side.judge(groups)
    lists = [trace.ref_logprobs for some in traces for trace in some]
    lengths = batch.lengths.tolist()
    scores = [rollout.score.value for group in groups for rollout in group.rollouts]
    for row, (values, length, score) in enumerate(zip(lists, lengths, scores, strict=True)):
        if len(values) != length and score is not None:
            raise DataError(
                f"rollout {row} of the step has no reference logprobs, which a KL penalty in the reward takes"
            )
    known = replace(batch, ref_logprobs=_table(lists, batch).float())
    penalty = kl_penalty(groups, known, side.objective.recipe.kl, side.plan.kl_in_reward)
    return side.judge(groups, penalty)


def recorded(groups: Sequence[Group], traces: Sequence[Sequence[Trace]]) -> Verdict:
    """What the run itself made of the groups, as it stands in their traces."""
    here = present(groups)
    flat = [trace for some in traces for trace in some]

    def table(values: list[float], absent: float) -> Tensor:
        full = torch.full(here.shape, absent, dtype=torch.float64)
        return full.masked_scatter(here, torch.tensor(values, dtype=torch.float64))

    counts = table([float(any(trace.mask)) for trace in flat], 0.0).bool()
    advantages = table([trace.advantage for trace in flat], 0.0)
    return Verdict(
        rewards=table([torch.nan if trace.reward is None else trace.reward for trace in flat], torch.nan),
        advantages=advantages,
        counts=counts,
        signal=has_signal(advantages.masked_fill(~counts, 0.0)),
    )


def coefficients_of(
    side: Side, step: int, groups: Sequence[Group], traces: Sequence[Sequence[Trace]], verdict: Verdict
) -> Coefficients:
    """The coefficients of the step's last pass, update by update."""
    batch = whole_batch(groups)
    counts, sent = taking_part(groups, batch, verdict, side.objective)
    tokens = _tokens(batch, traces, verdict.advantages[present(groups)])
    is_known = _known(side, batch, traces)
    values = torch.zeros(batch.ids.shape, dtype=torch.float64)
    low = high = num_tokens = 0
    for members in minibatches(counts, side.plan, step, side.plan.passes - 1):
        rows = sorted(set(members) & set(sent))
        known = [row for row in rows if is_known[row]]
        if side.objective.recipe.gate.threshold is not None and len(known) < len(rows):
            # Its one number is found over all tokens of the update.
            known = []
        values[rows] = torch.nan
        if not known:
            continue
        totals = Totals(tokens=int(batch.mask[members].sum()), sequences=len(members), limit=side.limit)
        part = _select(tokens, known)
        values[known] = gradient(part, side.objective, totals)
        stats = token_metrics(part, side.objective.recipe.objective, side.objective.recipe.correction)
        low += _count(stats["clip_ratio/low_mean"])
        high += _count(stats["clip_ratio/high_mean"])
        num_tokens += int(part.mask.sum())
    return Coefficients(values.masked_fill(~batch.mask, 0.0), batch.mask, low, high, num_tokens)


def gradient(tokens: Tokens, objective: Objective, totals: Totals) -> Float[Tensor, "B T"]:
    """The loss by the logprobs of some rollouts of an update with these totals; 0 where the mask is False."""
    logprobs = tokens.logprobs.detach().clone().requires_grad_()
    find = objective.recipe.gate.threshold
    value = loss(
        replace(tokens, logprobs=logprobs),
        objective.recipe,
        totals,
        kl_coef=objective.kl_coef,
        gate_threshold=find(tokens.entropy[tokens.mask]) if find is not None else 0.0,
    )
    if not value.requires_grad:
        return torch.zeros_like(logprobs)
    (found,) = torch.autograd.grad(value, logprobs, allow_unused=True, materialize_grads=True)
    return found


def _tokens(batch: Batch, traces: Sequence[Sequence[Trace]], advantages: Float[Tensor, " B"]) -> Tokens:
    """What a recipe reads, in float64; 0 where a rollout's list is not stored."""
    flat = [trace for some in traces for trace in some]
    return Tokens(
        logprobs=_table([trace.logprobs for trace in flat], batch),
        old_logprobs=_table([trace.old_logprobs for trace in flat], batch),
        sampler_logprobs=batch.sampler_logprobs.double(),
        ref_logprobs=_table([trace.ref_logprobs for trace in flat], batch)
        if any(trace.ref_logprobs for trace in flat)
        else None,
        entropy=_table([trace.entropy for trace in flat], batch),
        advantages=advantages.double(),
        mask=batch.mask,
    )


def _known(side: Side, batch: Batch, traces: Sequence[Sequence[Trace]]) -> list[bool]:
    """By row: all that the side's loss reads of it is stored."""
    needs = ["logprobs", "old_logprobs", "entropy"]
    if side.objective.kl_coef:
        needs.append("ref_logprobs")
    flat = [trace for some in traces for trace in some]
    return [
        all(len(getattr(trace, name)) == length for name in needs)
        for trace, length in zip(flat, batch.lengths.tolist(), strict=True)
    ]


def _table(lists: Sequence[Sequence[float]], batch: Batch) -> Float[Tensor, "B T"]:
    """The lists as rows; 0 in those whose length is not their completion's."""
    table = torch.zeros(batch.ids.shape, dtype=torch.float64)
    for row, (values, length) in enumerate(zip(lists, batch.lengths.tolist(), strict=True)):
        if len(values) == length:
            table[row, :length] = torch.tensor(values, dtype=torch.float64)
    return table


def _select(tokens: Tokens, rows: list[int]) -> Tokens:
    """These rows of every table."""
    return Tokens(
        logprobs=tokens.logprobs[rows],
        old_logprobs=tokens.old_logprobs[rows],
        sampler_logprobs=tokens.sampler_logprobs[rows],
        ref_logprobs=None if tokens.ref_logprobs is None else tokens.ref_logprobs[rows],
        entropy=tokens.entropy[rows],
        advantages=tokens.advantages[rows],
        mask=tokens.mask[rows],
    )


def _count(stat: Metric) -> int:
    assert isinstance(stat, Stat)
    return int(stat.total)
