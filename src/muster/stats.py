"""Numbers about runs that the trainer, the doctor and the inspector share; numpy only."""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float | None]
"""None and NaN stand for "no number here" and are left out."""

_RESAMPLES = 10_000
_MAX_TREND_POINTS = 1_000


class Interval(NamedTuple):
    """A mean and where it may lie."""

    mean: float
    low: float | None
    """None where one prompt alone says nothing about the spread."""
    high: float | None


class Trend(NamedTuple):
    """A straight line through values that hardly minds outliers."""

    slope: float
    """Change per step."""
    first: float
    """The line's value at the first step."""
    last: float
    """The line's value at the last step."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that k of n completions, drawn without putting back, hold one of the c right ones.

    1 - C(n-c, k) / C(n, k), unbiased (arXiv:2107.03374), from exact whole numbers.
    """
    if not 0 <= c <= n:
        raise ValueError(f"{c} of {n} completions can't be right")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} completions per prompt, and at least 1; there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_interval(values: Sequence[Sequence[float]], confidence: float = 0.95) -> Interval:
    """Mean of the prompts' means, with the interval that drawing other prompts would give.

    A percentile bootstrap over prompts: completions of one prompt are alike, so they are drawn together,
    and the interval stays in the rewards' range. It has no width where all prompts agree, however few
    they are. Always the same draws, so that equal values have equal intervals.
    """
    means = np.array([np.mean(group) for group in values], dtype=np.float64)
    if not means.size:
        raise ValueError("an interval needs at least one prompt with a reward")
    mean = float(means.mean())
    if means.size == 1:
        return Interval(mean, None, None)
    draws = np.random.default_rng(0).integers(means.size, size=(_RESAMPLES, means.size))
    outside = (1.0 - confidence) / 2.0
    low, high = np.quantile(means[draws].mean(axis=1), [outside, 1.0 - outside])
    return Interval(mean, float(low), float(high))


def mean_of(values: Numbers) -> float | None:
    """Mean of the numbers that are there; None where there are none."""
    there = _finite(values)
    return float(there.mean()) if there.size else None


def running_mean(values: Numbers, window: int) -> list[float | None]:
    """At each place, the mean of the numbers that are there among the last `window` places."""
    return [mean_of(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


def distinct_share(items: Sequence[Hashable]) -> float | None:
    """How many of the items are different, as a share of all; None for no items."""
    return len(set(items)) / len(items) if items else None


def distinct_ngrams(sequences: Sequence[Sequence[Hashable]], n: int) -> float | None:
    """Different runs of n items as a share of all such runs (distinct-n, arXiv:1510.03055)."""
    return distinct_share([tuple(s[start : start + n]) for s in sequences for start in range(len(s) - n + 1)])


def trend(values: Numbers, steps: Sequence[float] | None = None) -> Trend | None:
    """The line whose slope is the median over all pairs of values (Theil-Sen); None for fewer than two.

    Without `steps`, values are one step apart. A long series is thinned evenly.
    """
    y = _with_nan(values)
    x = np.asarray(steps if steps is not None else np.arange(y.size), dtype=np.float64)
    is_there = np.isfinite(y)
    x, y = x[is_there], y[is_there]
    if x.size > _MAX_TREND_POINTS:
        picked = np.linspace(0, x.size - 1, _MAX_TREND_POINTS).astype(int)
        x, y = x[picked], y[picked]
    if x.size < 2:
        return None
    i, j = np.triu_indices(x.size, k=1)
    slope = float(np.median((y[j] - y[i]) / (x[j] - x[i])))
    start = float(np.median(y - slope * x))
    return Trend(slope, start + slope * float(x[0]), start + slope * float(x[-1]))


def _finite(values: Numbers) -> NDArray[np.float64]:
    array = _with_nan(values)
    return array[np.isfinite(array)]


def _with_nan(values: Numbers) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
