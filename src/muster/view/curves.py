"""A run's numbers by step, as columns: what the page draws. None is a gap, never a zero."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain

from muster.clock import BESIDE_STEP
from muster.store import Line

SECONDS = "seconds/"
TOKENS_PER_SECOND = "tokens_per_second"
_NOT_SPEED = BESIDE_STEP | {"write"}
"""Phases that the tokens of a step don't pass through."""


def to_columns(
    lines: Sequence[Line], timings: Iterable[Line], groups: Iterable[Line], full: float
) -> dict[str, list[float | None]]:
    """The numbers of these lines by key, each as long as there are lines; `step` is one of them.

    Beside the metrics: seconds by phase, tokens per second, and what the scores of the groups say.
    """
    times = {line.get("step"): timing_numbers(line) for line in timings}
    grouped = {line.get("step"): group_numbers(line, full) for line in groups}
    steps = [line.get("step") for line in lines]
    tables = (
        lines,
        [times.get(step, _NOTHING) for step in steps],
        [grouped.get(step, _NOTHING) for step in steps],
    )
    columns: dict[str, list[float | None]] = {}
    for table in tables:
        for key in dict.fromkeys(chain.from_iterable(table)):
            column = numbers_of([line.get(key) for line in table])
            if column is not None:
                columns[key] = column
    return columns


_NOTHING: Line = {}
_PLAIN = frozenset({float, int, type(None)})


def numbers_of(values: list[object]) -> list[float | None] | None:
    """The values with None for all that is no number that JSON can hold; None where none is."""
    # Looking at a whole column at once is ten times quicker, and nearly all hold numbers alone.
    types = set(map(type, values))
    if types == {float} or (types <= _PLAIN and int not in types):
        is_fine = math.inf not in values and -math.inf not in values
        column = values if is_fine else [number_of(value) for value in values]
    else:
        column = [number_of(value) for value in values]
    return None if all(value is None for value in column) else column  # pyright: ignore[reportReturnType]


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
    groups = line.get("groups")
    kinds = [signal_of_entry(group, full) for group in (groups if isinstance(groups, list) else [])]
    judged = [kind for kind in kinds if kind is not None]
    shares: dict[str, float | None] = {
        f"groups/{kind}": judged.count(kind) / len(judged) if judged else None for kind in SIGNALS
    }
    ends = {f"completions/{name}": number_of(line.get(name)) for name in ("length_p10", "length_p90")}
    return {**shares, **ends}


SIGNALS = ("mixed", "all_right", "all_wrong", "equal_between")


def signal_of(scores: Sequence[float], full: float) -> str | None:
    """What a group's scores teach: `mixed`, or why nothing; None for fewer than two scores."""
    return _signal(min(scores), max(scores), full) if len(scores) > 1 else None


def signal_of_entry(group: object, full: float) -> str | None:
    """The same of a group's entry in the file of groups."""
    if not isinstance(group, dict) or not isinstance(scored := group.get("scored"), int) or scored < 2:
        return None
    low, high = number_of(group.get("low")), number_of(group.get("high"))
    return None if low is None or high is None else _signal(low, high, full)


def _signal(low: float, high: float, full: float) -> str:
    if low != high:
        return "mixed"
    if low >= full:
        return "all_right"
    return "all_wrong" if low <= 0 else "equal_between"
