"""One step's rollouts under both sides."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import fsum
from typing import NamedTuple

from tokenizers import Tokenizer

from muster.errors import ConfigError, DataError
from muster.judge import Verdict
from muster.records import Group, Score, Trace
from muster.regrade.coefficients import Coefficients, Side, coefficients_of, judged, recorded
from muster.regrade.comparing import Products, correlation, graded, products
from muster.regrade.stored import StoredStep, requests_of, with_scores
from muster.rewards import Grader
from muster.store import Changes, Compared, Line

NO_JUDGE = "no reward judged it"
_CLIPS = ("clip_ratio/low_mean", "clip_ratio/high_mean")


class Scoring(NamedTuple):
    """Where the scores after come from."""

    grader: Grader | None
    """None: from the recorded parts."""
    weights: Mapping[str, float]
    """By reward."""
    changes_weights: bool
    """The recorded parts are summed anew; else the recorded scores stay as they are."""
    tokenizer: Tokenizer | None
    num_steps: int | None

    def of(self, step: StoredStep) -> list[Score]:
        """A score per rollout of the step, in order."""
        if self.grader is not None:
            asked = requests_of(step, self.tokenizer)
            return self.grader.grade(asked, step=step.number, num_steps=self.num_steps)
        scores = [rollout.score for group in step.groups for rollout in group.rollouts]
        return [summed(score, self.weights) for score in scores] if self.changes_weights else scores


class StepResult(NamedTuple):
    """What came of one step."""

    compared: Compared
    changes: list[Changes]
    pairs: list[tuple[float, float]]
    """Advantages before and after, of the rollouts trained on that have a score on both sides."""
    products: Products
    same_advantages: int
    """Recorded advantages that the run's own settings give, to the last bit."""
    of_advantages: int
    same_clip: bool | None
    """The recorded clip shares come out; None where there is nothing to hold them against."""
    reasons: Counter[str]
    """Why rewards failed."""


def summed(score: Score, weights: Mapping[str, float]) -> Score:
    """The score with its recorded parts summed by these weights."""
    terms = [
        weight * part
        for name, weight in weights.items()
        if weight and (part := score.parts.get(name)) is not None
    ]
    return replace(score, value=fsum(terms) if terms and not score.failures else None)


def regrade_step(step: StoredStep, before: Side, after: Side, scoring: Scoring, line: Line) -> StepResult:
    """The step under both sides; `line` is what its metrics say. DataError where something is missing."""
    regraded = with_scores(step.groups, scoring.of(step))
    places = step.places
    traces = [step.traces[place] for place in places]
    olds, news = ([groups[place] for place in places] for groups in (step.groups, regraded))
    was, now = recorded(olds, traces), judged(after, news, traces)
    first = coefficients_of(before, step.number, olds, traces, was)
    second = coefficients_of(after, step.number, news, traces, now)
    changes = list(_changes(step, regraded, now))
    both = products(first, second)
    pairs = [
        (one.advantage_before, one.advantage_after)
        for one in changes
        if not step.is_replaced[one.group] and None not in (one.score_before, one.score_after)
    ]
    same, of = _reproduced(before, olds, traces)
    return StepResult(
        compared=Compared(
            step=step.number,
            rollouts=len(changes),
            groups=len(step.groups),
            before=graded(step.groups, first),
            after=graded(regraded, second),
            advantage_correlation=correlation(pairs),
            agreement=both.agreement(),
        ),
        changes=changes,
        pairs=pairs,
        products=both,
        same_advantages=same,
        of_advantages=of,
        same_clip=_same_clip(first, line) if before.plan.passes == 1 else None,
        reasons=Counter(_reasons(regraded)),
    )


def _changes(step: StoredStep, regraded: Sequence[Group], now: Verdict) -> Iterator[Changes]:
    slot_of = {place: slot for slot, place in enumerate(step.places)}
    for place, (old, new) in enumerate(zip(step.groups, regraded, strict=True)):
        for index, (was, rollout) in enumerate(zip(old.rollouts, new.rollouts, strict=True)):
            slot = slot_of.get(place)
            yield Changes(
                step=step.number,
                group=place,
                index=index,
                score_before=was.score.value,
                score_after=rollout.score.value,
                advantage_before=step.traces[place][index].advantage,
                advantage_after=0.0 if slot is None else float(now.advantages[slot, index]),
                why=_why(rollout.score),
            )


def _why(score: Score) -> str | None:
    if score.is_abstention:
        return NO_JUDGE
    return "; ".join(f"{name} {reason}" for name, reason in score.failures.items()) or None


def _reasons(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        for rollout in group.rollouts:
            yield from (f"{name} {reason}" for name, reason in rollout.score.failures.items())


def _reproduced(before: Side, groups: Sequence[Group], traces: Sequence[Sequence[Trace]]) -> tuple[int, int]:
    """How many of the recorded advantages the run's own settings give, and of how many."""
    with suppress(DataError):
        own = judged(before, groups, traces).advantages
        pairs = [
            (trace.advantage, float(own[slot, index]))
            for slot, some in enumerate(traces)
            for index, trace in enumerate(some)
        ]
        return sum(was == found for was, found in pairs), len(pairs)
    return 0, 0


def _same_clip(found: Coefficients, line: Line) -> bool | None:
    recorded_shares = [line.get(name) for name in _CLIPS]
    if None in recorded_shares or found.values.isnan().any() or not found.tokens:
        return None
    return recorded_shares == [found.clipped_low / found.tokens, found.clipped_high / found.tokens]


def parts_of(step: StoredStep) -> list[str]:
    """The rewards whose parts are recorded, in order; ConfigError for a step without rollouts."""
    for group in step.groups:
        for rollout in group.rollouts:
            return list(rollout.score.parts)
    raise ConfigError(f"step {step.number} holds no rollouts.")
