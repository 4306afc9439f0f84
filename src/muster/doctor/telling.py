"""Numbers that moved, put into the words and the evidence of a finding."""

from collections.abc import Callable, Mapping

from muster.doctor.baseline import Shift
from muster.doctor.course import Course
from muster.doctor.facts import StepFacts
from muster.doctor.finding import Evidence, Finding, Kind, RolloutRef

Shifts = Mapping[str, Shift]
"""By what moved."""
Chosen = Callable[[StepFacts], tuple[RolloutRef, ...]]


def best(facts: StepFacts) -> tuple[RolloutRef, ...]:
    """The rollouts with the highest scores."""
    return facts.best


def by_trend(
    course: Course,
    kind: Kind,
    what: str,
    signs: Shifts,
    *,
    beside: Shifts | None = None,
    evidence: Evidence | None = None,
) -> Finding:
    """A finding that rests on trends: since the first of them, as sure as the surest.

    `beside` are numbers that are told with them; `evidence` is where to look, without it the best rollouts
    of the last step.
    """
    surest = min(signs.values(), key=lambda shift: shift.p)
    seen = evidence or last_step(course)
    return Finding(
        kind=kind,
        what=what,
        since=min(shift.since for shift in signs.values()),
        sure=surest.sure,
        how=surest.how,
        evidence=Evidence(
            numbers={**numbers_of({**(beside or {}), **signs}), **seen.numbers},
            steps=seen.steps,
            groups=seen.groups,
            rollouts=seen.rollouts,
        ),
    )


def last_step(
    course: Course, chosen: Chosen = best, numbers: Mapping[str, float | str] | None = None
) -> Evidence:
    """The last step whose rollouts were looked at, and some of these; without any, the last step."""
    if not course.facts:
        return Evidence(numbers=numbers or {}, steps=(course.lines[-1]["step"],))
    last = course.facts[-1]
    return Evidence(numbers=numbers or {}, steps=(last.step,), rollouts=chosen(last))


def went(shifts: Shifts) -> str:
    """From what to what each went."""
    told = [f"{name} went from {shift.early:.3g} to {shift.late:.3g}" for name, shift in shifts.items()]
    return "; ".join(told)


def numbers_of(shifts: Shifts) -> dict[str, float | str]:
    """Each shift as two numbers of evidence."""
    pairs = [(f"{name} at first", shift.early) for name, shift in shifts.items()]
    return dict(sorted([*pairs, *((f"{name} now", shift.late) for name, shift in shifts.items())]))


def has_halved(shift: Shift | None) -> bool:
    """Fell, by a trend, to at most half of what it was at first."""
    return shift is not None and shift.falls and shift.late <= shift.early / 2


def repetition(course: Course) -> Shifts:
    """Completions have come to repeat themselves; empty where they have not."""
    pairs = course.shift_of_facts(lambda facts: facts.distinct_pairs)
    return {"different pairs of tokens within a completion": pairs} if pairs and has_halved(pairs) else {}
