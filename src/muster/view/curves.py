"""A run's numbers by step, as columns: what the page draws. None is a gap, never a zero."""

import math
from collections.abc import Iterable, Mapping, Sequence

from muster.store import Line

SECONDS = "seconds/"
TOKENS_PER_SECOND = "tokens_per_second"
_NOT_SPEED = frozenset({"eval", "save", "write", "load"})
"""Phases that the tokens of a step don't pass through."""


def to_columns(
    lines: Sequence[Line], timings: Iterable[Line], groups: Iterable[Line], full: float
) -> dict[str, list[float | None]]:
    """The numbers of these lines by key, each as long as there are lines; `step` is one of them.

    Beside the metrics: seconds by phase, tokens per second, and what the scores of the groups say.
    """
    times = {line.get("step"): line for line in timings}
    grouped = {line.get("step"): line for line in groups}
    columns: dict[str, list[float | None]] = {}
    for place, line in enumerate(lines):
        step = line.get("step")
        more = [timing_numbers(times[step])] if step in times else []
        more += [group_numbers(grouped[step], full)] if step in grouped else []
        for numbers in (line, *more):
            for key, value in numbers.items():
                if (number := number_of(value)) is not None:
                    columns.setdefault(key, [None] * len(lines))[place] = number
    return columns


def number_of(value: object) -> float | None:
    """The value as a number that JSON can hold; None for anything else."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int):
        return value if abs(value) < 2**53 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def timing_numbers(line: Line) -> dict[str, float | None]:
    """Seconds by phase, and the step's tokens over the time of sampling, scoring and the update."""
    seconds = line.get("seconds")
    phases = {
        phase: number
        for phase, value in (seconds if isinstance(seconds, dict) else {}).items()
        if (number := number_of(value)) is not None
    }
    busy = math.fsum(number for phase, number in phases.items() if phase not in _NOT_SPEED)
    tokens = number_of(line.get("tokens"))
    speed = tokens / busy if tokens and busy > 0 else None
    return {**{f"{SECONDS}{phase}": number for phase, number in phases.items()}, TOKENS_PER_SECOND: speed}


def group_numbers(line: Line, full: float) -> dict[str, float | None]:
    """Shares of the groups that are mixed, all right, all wrong or equal in between; spread of lengths."""
    groups = [group for group in line.get("groups") or [] if isinstance(group, dict)]
    kinds = [signal_of(scores_of(group), full) for group in groups]
    judged = [kind for kind in kinds if kind is not None]
    lengths = sorted(n for group in groups for n in group.get("lengths") or [] if isinstance(n, int))
    shares: dict[str, float | None] = {
        f"groups/{kind}": judged.count(kind) / len(judged) if judged else None for kind in SIGNALS
    }
    low, high = (quantile(lengths, share) for share in (0.1, 0.9))
    return {**shares, "completions/length_p10": low, "completions/length_p90": high}


SIGNALS = ("mixed", "all_right", "all_wrong", "equal_between")


def signal_of(scores: Sequence[float], full: float) -> str | None:
    """What a group's scores teach: `mixed`, or why nothing; None for fewer than two scores."""
    if len(scores) < 2:
        return None
    if min(scores) != max(scores):
        return "mixed"
    if scores[0] >= full:
        return "all_right"
    return "all_wrong" if scores[0] <= 0 else "equal_between"


def scores_of(group: Mapping[str, object]) -> list[float]:
    """The scores of a group that are numbers."""
    scores = group.get("scores")
    return [
        number
        for score in (scores if isinstance(scores, list) else [])
        if (number := number_of(score)) is not None
    ]


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value that this share of the ordered values does not exceed, between neighbours; None for none."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low, rest = int(place), place - int(place)
    return ordered[low] + rest * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])
