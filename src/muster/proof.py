"""The proof of the sampler: what it handed over is well-formed, of the right version, and the policy's own.

Every completion is looked at (its version, its end), and of every weight load a few tokens are scored again.
Where a step's update scores its rollouts anyway, that is the proof and costs nothing; a step without an
update and an evaluation score the first tokens of a few completions.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor

from muster.algo import metrics as sums
from muster.batch import Batch, Row, collate
from muster.engines.base import Sampling
from muster.errors import EngineError
from muster.policy import Weights
from muster.records import Completion, Group
from muster.runstate import Run
from muster.update import score_in_parts

NUM_ROLLOUTS, NUM_TOKENS = 4, 16
"""How many completions are scored again where no update does it, and how many tokens of each."""

TEMPERATURES = (0.0625, 0.125, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 4.0)
"""What a sampler may have been left at, tried in search of a cause."""

CLEARLY = 0.25
"""A cause is named where it leaves no more than this share of the difference."""


def refuse_odd(groups: Sequence[Group], sampling: Sampling, version: int, step: int) -> None:
    """Refuses completions of another policy version than the one loaded, or that end where none can.

    Raises EngineError with the first one that is odd.
    """
    for group in groups:
        for index, rollout in enumerate(group.rollouts):
            if oddity := _oddity(rollout.completion, sampling, version):
                raise EngineError(
                    f"completion {index} of group {group.id} at step {step} can't be trained on: {oddity}"
                )


def _oddity(completion: Completion, sampling: Sampling, version: int) -> str | None:
    emitted, limit = completion.num_emitted, sampling.max_tokens
    if completion.version != version:
        return (
            f"it carries version {completion.version} of the policy, and version {version} was loaded last. "
            "The engine did not take the new weights."
        )
    if emitted > limit:
        return f"it has {emitted} tokens, and sampling.max_tokens is {limit}. The engine ran past its limit."
    if not all(math.isfinite(value) and value <= 1e-3 for value in completion.sampler_logprobs):
        return "one of its logprobs is above 0 or not finite. The engine reports something else."
    if completion.emitted is not None:
        return _odd_turn(completion, sampling)
    return _odd_end(completion, sampling)


def _odd_end(completion: Completion, sampling: Sampling) -> str | None:
    """What is wrong with the end of a completion of one turn."""
    ids, limit = completion.ids, sampling.max_tokens
    if not completion.is_truncated:
        return _odd_stop(ids, sampling)
    if len(ids) < limit:
        return f"it ends at {len(ids)} of {limit} tokens for their number. The engine has another limit."
    return None if sampling.ignore_eos else _stop_inside(ids, sampling.stop_ids, "runs on")


def _odd_turn(completion: Completion, sampling: Sampling) -> str | None:
    """What is wrong with the first turn that is odd; where the last one has to end is not known here."""
    turns = [completion.ids[turn.start : turn.stop] for turn in completion.turns]
    for place, ids in enumerate(turns):
        may_be_cut = completion.is_truncated and place + 1 == len(turns)
        odd = (
            _stop_inside(ids[:-1], sampling.stop_ids, "goes on after it")
            if may_be_cut
            else _odd_stop(ids, sampling)
        )
        if odd is not None:
            return f"in turn {place + 1} {odd}"
    return None


def _odd_stop(ids: Sequence[int], sampling: Sampling) -> str | None:
    """What is wrong with a completion that is said to have stopped by itself."""
    stops = sorted(sampling.stop_ids)
    if sampling.ignore_eos:
        return "it stopped, and sampling.ignore_eos is on. The engine looks for stops it was not given."
    if ids and not sampling.stop_strings and ids[-1] not in sampling.stop_ids:
        return (
            f"it stopped, and its last token {ids[-1]} is none of the stop tokens {stops}. The engine ends "
            "at other tokens, or leaves the one that was sampled out."
        )
    return _stop_inside(ids[:-1], sampling.stop_ids, "goes on after it")


def _stop_inside(ids: Sequence[int], stop_ids: frozenset[int], what: str) -> str | None:
    place = next((place for place, token in enumerate(ids) if token in stop_ids), None)
    if place is None:
        return None
    return f"its token {place} is stop token {ids[place]}, and it {what}. The engine ends at other tokens."


def prove(
    run: Run, groups: Sequence[Group], *, step: int, temperature: float, weights: Weights | None
) -> float | None:
    """Mean |logprob difference| in nats over a few sampled tokens; None where there is nothing to score.

    `weights` are those that the engine holds, None where they are the policy's. Raises EngineError
    above `engine.max_mismatch`. At temperature 0 every logprob is 0, which proves nothing.
    """
    batch = _few_tokens(groups)
    if batch is None or temperature == 0:
        return None
    gap = _gap(_score(run, batch, temperature, weights), batch)
    refuse_mismatch(run, gap, groups, step=step, temperature=temperature, weights=weights)
    return gap


def refuse_mismatch(
    run: Run,
    gap: float | None,
    groups: Sequence[Group],
    *,
    step: int,
    temperature: float,
    weights: Weights | None,
) -> None:
    """Stops where the sampler's logprobs are not the trainer's, with what most likely made them differ."""
    if gap is None or gap <= run.plan.max_mismatch:
        return
    batch = _few_tokens(groups)
    cause = _cause(run, batch, temperature, weights) if batch is not None else None
    raise EngineError(
        f"sampler and trainer disagree: mean |logprob difference| is {gap:.4g} nats at step {step}, above "
        f"engine.max_mismatch = {run.plan.max_mismatch}. What was sampled is not the policy being trained. "
        f"Likely cause: {cause or 'weights were not synced, all or some of them, or an adapter is scaled'}."
    )


def _few_tokens(groups: Sequence[Group]) -> Batch | None:
    """The first tokens of one completion each of the groups with the shortest prompts."""
    found = [(g, next((r.completion for r in g.rollouts if r.completion.ids), None)) for g in groups]
    chosen = sorted(
        ((group.prompt.ids, completion) for group, completion in found if completion is not None),
        key=lambda pair: len(pair[0]),
    )[:NUM_ROLLOUTS]
    if not chosen:
        return None
    rows = [Row(number, _start_of(completion), 0.0) for number, (_, completion) in enumerate(chosen)]
    return collate([ids for ids, _ in chosen], rows)


def _start_of(completion: Completion) -> Completion:
    return replace(
        completion,
        ids=completion.ids[:NUM_TOKENS],
        sampler_logprobs=completion.sampler_logprobs[:NUM_TOKENS],
        kept=None if completion.kept is None else completion.kept[:NUM_TOKENS],
        emitted=None if completion.emitted is None else completion.emitted[:NUM_TOKENS],
    )


def _score(run: Run, batch: Batch, temperature: float, weights: Weights | None) -> Tensor:
    """[B T] what the trainer says of the batch's tokens; the run's budget stays as it is."""
    with run.policy.using(weights):
        return score_in_parts(run.policy, batch, temperature, replace(run.budget)).logprobs


def _gap(logprobs: Tensor, batch: Batch) -> float | None:
    return sums.stat((logprobs - batch.sampler_logprobs).abs(), batch.mask).value


def _cause(run: Run, batch: Batch, temperature: float, weights: Weights | None) -> str | None:
    """What explains the difference, found by trying; None where nothing that was tried does."""
    ours = _score(run, batch, temperature, weights)
    found = _gap(ours, batch)
    tries = _tries(run, batch, ours, temperature, weights)
    gap, text = min(((gap, text) for text, gap in tries if gap is not None), default=(math.inf, ""))
    # Not finite, where one of the sampler's numbers isn't: then nothing explains it.
    if found is None or not gap <= CLEARLY * found:
        return None
    return f"{text}, which leaves {gap:.2g} nats"


def _tries(
    run: Run, batch: Batch, ours: Tensor, temperature: float, weights: Weights | None
) -> Iterator[tuple[str, float | None]]:
    for shift, side in ((1, "next"), (-1, "previous")):
        both = batch.mask & torch.roll(batch.mask, -shift, dims=1)
        both[:, -1 if shift > 0 else 0] = False
        moved = torch.roll(ours, -shift, dims=1)
        gap = sums.stat((moved - batch.sampler_logprobs).abs(), both).value
        yield f"each of the sampler's logprobs is that of the {side} token", gap
    for other in TEMPERATURES:
        if other != temperature:
            text = f"the sampler runs at temperature {other:g} instead of {temperature:g}"
            if other == 1:
                text += (
                    ", or says logprobs before temperature (vLLM without --logprobs-mode processed_logprobs)"
                )
            yield text, _gap(_score(run, batch, other, weights), batch)
    if run.reference is not None:
        text = "the sampler is still on the weights of the start, so no load has reached it"
        yield text, _gap(_score(run, batch, temperature, run.reference), batch)
    if isinstance(run.policy.model, PeftModel):
        with run.policy.model.disable_adapter():
            yield "the sampler runs without the adapter", _gap(_score(run, batch, temperature, None), batch)
