"""A run against its own first steps: medians of first and last, and whether there is a trend."""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from muster.doctor.finding import Sure
from muster.stats import Numbers, drift

MIN_POINTS = 6
"""With fewer, no order of the values is rare enough to say anything."""
MAX_WINDOW = 20
P = 0.005
"""A trend is one where chance would give such an order of the values less often than this."""
EFFECT = 2.0
"""And where first and last values differ by so many times what neighbouring steps do."""
# Makes a median of absolute differences the standard deviation of noise; of two values, hence the root.
_TO_DEVIATION = 1.4826 / math.sqrt(2.0)


class Series(NamedTuple):
    """Numbers by step, those without a number left out."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def last(self, share: float) -> "Series":
        """The end of it."""
        start = len(self.steps) - math.ceil(share * len(self.steps))
        return Series(self.steps[start:], self.values[start:])

    def since(self, step: int) -> "Series":
        """What is from a step on."""
        count = sum(number < step for number in self.steps)
        return Series(self.steps[count:], self.values[count:])


class Shift(NamedTuple):
    """How a number of the last steps compares with that of the first ones."""

    early: float
    """Median of the first values: the baseline."""
    late: float
    """Median of the last values."""
    noise: float
    """Standard deviation from step to step, from the median of absolute differences."""
    p_rising: float
    p_falling: float
    since: int
    """The step from which on values are nearer to the late than to the early ones."""
    num_steps: int

    @property
    def rises(self) -> bool:
        """There is a trend upwards, and more than noise between first and last."""
        return self.p_rising < P and self.late - self.early > EFFECT * self.noise

    @property
    def falls(self) -> bool:
        """There is a trend downwards, and more than noise between first and last."""
        return self.p_falling < P and self.early - self.late > EFFECT * self.noise

    @property
    def p(self) -> float:
        """The chance of the trend that there is."""
        return min(self.p_rising, self.p_falling)

    @property
    def how(self) -> str:
        """The test in words."""
        return f"Mann-Kendall trend over {self.num_steps} steps, p = {self.p:.1g}"

    @property
    def sure(self) -> Sure:
        """By the chance of such a trend."""
        return sure_by(self.p)


def sure_by(p: float) -> Sure:
    """How sure a test is."""
    return "certain" if p < 1e-6 else "likely" if p < 1e-3 else "possible"


def series_of(steps: Sequence[int], values: Numbers) -> Series:
    """The numbers that are there."""
    there = [
        (step, float(value))
        for step, value in zip(steps, values)
        if value is not None and math.isfinite(value)
    ]
    return Series(tuple(step for step, _ in there), tuple(value for _, value in there))


def window(count: int) -> int:
    """How many of the first and last values are the early and the late ones."""
    return max(2, min(MAX_WINDOW, count // 4))


def shift_of(series: Series) -> Shift | None:
    """First against last; None for too few steps."""
    values, count = series.values, len(series.values)
    if count < MIN_POINTS:
        return None
    width = window(count)
    early, late = statistics.median(values[:width]), statistics.median(values[-width:])
    trend = drift(values)
    assert trend is not None
    return Shift(
        early=early,
        late=late,
        noise=_noise(values),
        p_rising=trend.p_rising,
        p_falling=trend.p_falling,
        since=_beginning(series, early, late),
        num_steps=count,
    )


def _noise(values: Sequence[float]) -> float:
    """The larger of the noise of the first half and of all: a number that came to rest hides its noise."""
    return max(_step_to_step(values), _step_to_step(values[: len(values) // 2 + 1]))


def _step_to_step(values: Sequence[float]) -> float:
    return _TO_DEVIATION * statistics.median(abs(b - a) for a, b in pairwise(values))


def _beginning(series: Series, early: float, late: float) -> int:
    """The first step after which medians of three stay on the late side of the middle."""
    values, middle = series.values, (early + late) / 2.0
    place = len(values)
    while place:
        near = statistics.median(values[max(0, place - 2) : place + 1])
        if (near - middle) * (late - early) <= 0:
            break
        place -= 1
    return series.steps[min(place, len(values) - 1)]
