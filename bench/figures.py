"""The arithmetic of the measurements: medians, spreads, ratios."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class Figure(NamedTuple):
    """Repeated measurements of one thing."""

    median: float
    low: float
    high: float
    rounds: int


def figure(values: Sequence[float]) -> Figure:
    """Median, smallest, largest, and how many there were; ValueError where there were none."""
    if not values:
        raise ValueError("nothing was measured, so there is no median")
    return Figure(median(values), min(values), max(values), len(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> Figure:
    """How many times larger `above` is: of the medians, with the span over the rounds.

    The measurements of one round stand at one place, so what slows both sides in a round cancels there.
    """
    if len(above) != len(below):
        raise ValueError(f"{len(above)} measurements against {len(below)}: they are no rounds of one run")
    rounds = [one / other for one, other in zip(above, below, strict=True)]
    return Figure(median(above) / median(below), min(rounds), max(rounds), len(rounds))


def shown(value: Figure, digits: int = 3) -> str:
    """The median with its span, `2.41 (2.38 to 2.52)`; of one measurement, that one."""
    if value.rounds == 1:
        return rounded(value.median, digits)
    return f"{rounded(value.median, digits)} ({rounded(value.low, digits)} to {rounded(value.high, digits)})"


def rounded(value: float, digits: int = 3) -> str:
    """The number with that many significant digits, and no exponent where it can be avoided."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    places = digits - 1
    magnitude = abs(value)
    while magnitude >= 10:
        magnitude /= 10
        places -= 1
    while magnitude < 1:
        magnitude *= 10
        places += 1
    return f"{value:,.{max(places, 0)}f}"
