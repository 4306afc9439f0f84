"""The training loop: a generator that yields a report per step and knows no logger, file or page.

sample -> prompt -> completion -> rollout (reward) -> group (advantage) -> batch -> loss -> update
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from muster import ahead
from muster.algo.kl import KL
from muster.algo.ratios import sequence_sum
from muster.batch import Batch, Row, collate
from muster.engines.base import Sampling
from muster.errors import EngineLostError
from muster.findings import Setup, find, look
from muster.history import visits_of
from muster.judge import raw_signal
from muster.learn import Lessons, add_reference, present
from muster.proof import prove, refuse_odd
from muster.records import EvalReport, Group, StepReport, StreamKey, Trace
from muster.rewards import refuse_failures
from muster.runstate import Flight, Run
from muster.summary import count_tokens, summarize


def train(run: Run) -> Generator[StepReport]:
    """Steps until the plan's end; ask for the next one, or stop asking.

    A run that starts from step 0 with an evaluation before the first update reports it as step 0.
    """
    held_out: EvalReport | None = None
    if run.state.step == 0:
        sync(run, 0)
        if (held_out := evaluate_if_due(run)) is not None:
            yield StepReport(
                step=0,
                groups=(),
                traces=(),
                metrics=held_out.metrics,
                timings=run.clock.take(),
                eval=held_out,
            )
    while run.state.step < run.plan.num_steps:
        report = take_step(run)
        yield _with_trouble(report, run, held_out) if report.step == 1 else report


def setup_of(run: Run) -> Setup:
    """What the findings about a run's groups are weighed against."""
    scene = run.collector.scene
    return Setup(
        group_size=run.sampling.group_size,
        max_tokens=run.sampling.max_tokens,
        max_turn_tokens=None if scene is None else scene.stage.described.limits.max_turn_tokens,
        weights=run.judge.weights,
        levels=run.levels,
        max_failed_share=run.plan.max_failed_share,
        has_fixed_length=run.sampling.ignore_eos,
        leaves_out_truncated=run.judge.mask_truncated,
    )


def _with_trouble(report: StepReport, run: Run, held_out: EvalReport | None) -> StepReport:
    """The first step with what its rollouts, and the held-out ones before it, say against learning.

    They were sampled by the policy as it was before any update. It is said as warnings, which are events:
    metrics stay those of the step.
    """
    same_limit = run.evaluation is not None and run.evaluation.sampling.max_tokens == run.sampling.max_tokens
    before = held_out.groups if held_out is not None and same_limit else ()
    setup = setup_of(run)
    trouble = find(look([*report.groups, *before], setup), setup)
    return replace(report, warnings=(*report.warnings, *map(str, trouble)))


def take_step(run: Run) -> StepReport:
    """Samples, grades, learns, syncs and, where it is due, evaluates."""
    step = run.state.step + 1
    before = run.state.drawn, run.state.flights
    try:
        groups, replaced, warnings, about = _gather(run, step)
    except EngineLostError:
        # Nothing was learned from what came before: the run stands between two steps, and can be saved.
        run.state.drawn, run.state.flights = before
        raise
    ahead.fill(run, step + 1, step + run.plan.ahead)
    sampled = [*groups, *replaced]
    expected = run.state.history.expectations([group.sample.id for group in sampled])
    refuse_failures([r.score for group in sampled for r in group.rollouts], run.plan.max_failed_share)
    batch = whole_batch(groups)
    if run.plan.kl_in_reward:
        batch = add_reference(run, batch)
    penalty = kl_penalty(groups, batch, run.objective.recipe.kl, run.plan.kl_in_reward)
    verdict = run.judge(groups, penalty)
    lessons = Lessons(run, groups, batch, verdict)
    lessons.learn(step)
    sync(run, step)
    run.state.step = step
    metrics = summarize(sampled, verdict, lessons.results, run.levels)
    run.state.num_tokens += count_tokens(sampled)
    run.state.history = run.state.history.after(step, visits_of(sampled))
    metrics |= {
        **expected,
        "num_tokens": run.state.num_tokens,
        "epoch": (run.state.drawn - ahead.num_in_flight(run.state)) / len(run.items),
        "learning_rate": lessons.last_rate,
        "sampling/mismatch": lessons.mismatch,
        **about,
    }
    noted = run.collector.take_noted()
    report = evaluate_if_due(run)
    held_out = report.metrics if report else {}
    ahead.note_seconds(run)
    return StepReport(
        step=step,
        groups=(*groups, *replaced),
        traces=(*lessons.traces(), *_idle_traces(replaced)),
        metrics=noted.beside({**metrics, **held_out}),
        timings=run.clock.take(),
        warnings=(*warnings, *lessons.warnings),
        eval=report,
        extras=noted.extras,
    )


def evaluate_if_due(run: Run) -> EvalReport | None:
    """Held-out results of the policy as it is now; None on a step without an evaluation.

    A sampler that lags is given the newest weights for the evaluation, then its own again.
    """
    step, old = run.state.step, run.state.old
    if run.evaluation is None or not run.evaluation.is_due(step):
        return None
    engine = run.collector.engine
    if old is not None:
        engine.load_weights(run.policy.trainable(), run.state.version)
    report = _proven(run, run.evaluation.run(step, run.collector, run.clock), run.evaluation.sampling)
    if old is not None:
        engine.load_weights(old.items(), run.state.old_version)
    return report


def _proven(run: Run, report: EvalReport, sampling: Sampling) -> EvalReport:
    """The report with the figure that says that the policy as it is now was measured."""
    refuse_odd(report.groups, sampling, run.state.version, report.step)
    with run.clock.phase("eval"):
        gap = prove(run, report.groups, step=report.step, temperature=sampling.temperature, weights=None)
    return replace(report, metrics={**report.metrics, "eval_sampling/mismatch": gap})


class Gathered(NamedTuple):
    """What was sampled for a step, and scored."""

    groups: list[Group]
    replaced: list[Group]
    """Those of prompts that gave way to others for want of signal."""
    warnings: list[str]
    about: dict[str, float | None]
    """Metrics of what was sampled ahead."""


def _gather(run: Run, step: int) -> Gathered:
    """The step's groups, and what to say about them."""
    plan = run.plan
    # What replaces prompts would wait for whatever is asked for before it.
    ahead.fill(run, step, step if plan.resample else step + plan.ahead)
    flight = ahead.take(run, step)
    groups: dict[int, Group] = {}
    replaced: list[Group] = []
    gaps: list[float | None] = []
    slots = list(range(plan.prompts_per_step))
    taken: list[int] = []
    for attempt in range(plan.resample + 1):
        replaced += [groups.pop(slot) for slot in slots if slot in groups]
        keys = [StreamKey(plan.seed, step, slot, attempt) for slot in slots]
        if flight is not None and attempt == 0:
            drawn, collected = _scored(run, flight, keys)
        else:
            drawn, collected = _sampled(run, keys, taken)
            if plan.ahead:
                temperature = run.objective.temperature
                gaps.append(prove(run, collected, step=step, temperature=temperature, weights=None))
        taken += drawn
        groups |= dict(zip(slots, collected, strict=True))
        slots = [slot for slot, signal in zip(slots, raw_signal(collected), strict=True) if not signal]
        if not slots:
            break
    warnings = []
    if slots and plan.resample:
        warnings.append(
            f"after {plan.resample} rounds of resampling {len(slots)} of {plan.prompts_per_step} groups "
            "still carry no signal; the step trains on what there is"
        )
    own = [groups[slot] for slot in sorted(groups)]
    return Gathered(own, replaced, warnings, ahead.about(flight, own, gaps) if flight is not None else {})


class Round(NamedTuple):
    """Prompts that were drawn, and their groups."""

    drawn: Sequence[int]
    groups: list[Group]


def _sampled(run: Run, keys: Sequence[StreamKey], taken: Sequence[int]) -> Round:
    """Other prompts than those taken, drawn, sampled and scored now."""
    drawn = run.draw(run.state, len(keys), taken)
    run.state.drawn += len(keys)
    items = [run.items[index] for index in drawn]
    groups = run.collector.collect(items, keys, run.sampling, run.clock)
    refuse_odd(groups, run.sampling, run.state.old_version, keys[0].step)
    return Round(drawn, groups)


def _scored(run: Run, flight: Flight, keys: Sequence[StreamKey]) -> Round:
    """What was sampled ahead, scored now."""
    items = [run.items[index] for index in flight.indices]
    completions = flight.sampled.result()
    groups = run.collector.collect(items, keys, run.sampling, run.clock, sampled=completions)
    return Round(flight.indices, groups)


def whole_batch(groups: Sequence[Group]) -> Batch:
    """Every rollout of the groups as a row, in order; advantages are still to come."""
    rows = [
        Row(number, rollout.completion, 0.0)
        for number, group in enumerate(groups)
        for rollout in group.rollouts
    ]
    return collate([group.prompt.ids for group in groups], rows)


def kl_penalty(groups: Sequence[Group], batch: Batch, kl: KL, coef: float) -> Tensor | None:
    """[P G] coefficient times each completion's KL estimate, summed over its tokens; None where it is off."""
    if not coef or batch.ref_logprobs is None:
        return None
    sampled = batch.sampler_logprobs
    estimate = kl(sampled, batch.ref_logprobs, sampled)
    per_row = coef * sequence_sum(estimate, batch.mask).squeeze(1)
    width = max(len(group.rollouts) for group in groups)
    table = torch.zeros(len(groups), width, dtype=per_row.dtype)
    return table.masked_scatter(present(groups), per_row)


def _idle_traces(groups: Sequence[Group]) -> list[tuple[Trace, ...]]:
    """Of groups that dynamic sampling replaced: recorded, never trained on."""
    return [
        tuple(
            Trace(reward=r.score.value, advantage=0.0, mask=(False,) * len(r.completion.ids))
            for r in group.rollouts
        )
        for group in groups
    ]


def sync(run: Run, step: int) -> None:
    """Gives the sampler the new weights where it is time."""
    if step % run.plan.sync_every:
        return
    with run.clock.phase("sync"):
        lags = run.plan.sync_every > 1
        run.state.old = run.policy.snapshot() if lags else None
        run.state.old_version = run.state.version
        weights = run.state.old.items() if run.state.old is not None else run.policy.trainable()
        run.collector.engine.load_weights(weights, run.state.version)
