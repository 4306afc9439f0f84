"""Numbers about runs that the trainer, the doctor and the inspector share; numpy only."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float | None]
"""None and NaN stand for "no number here" and are left out."""

_RESAMPLES = 10_000
_MAX_TREND_POINTS = 400
_STRENGTHS = tuple(2.0 ** (power / 2) for power in range(-8, 17))
"""How alike prompts may be: small, each prompt has one reward; large, all have the same rate."""


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


class Drift(NamedTuple):
    """Whether values rise or fall over time, in whatever form."""

    score: float
    """Standard normal where there is no trend; above 0 where values rise."""
    p_rising: float
    """Chance of so many rises among values in random order."""
    p_falling: float


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that k of n completions, drawn without putting back, hold one of the c right ones.

    1 - C(n-c, k) / C(n, k), unbiased (arXiv:2107.03374), from exact whole numbers.
    """
    if not 0 <= c <= n:
        raise ValueError(f"{c} of {n} completions can't be right")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} completions per prompt, and at least 1; there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def chance_of_no_signal(rate: float, size: int) -> float:
    """Probability that all rewards of a group are equal, where each is right with this rate, else wrong.

    p^G + (1-p)^G. Such a group has no advantage (arXiv:2402.03300, arXiv:2503.14476).
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"a pass rate of {rate} is none; allowed: 0 to 1")
    return rate**size + (1.0 - rate) ** size


def no_signal_share(values: Sequence[Sequence[float]], size: int) -> float:
    """Share of groups of another size whose rewards would all be equal, from the rewards of some groups.

    A prompt with n rewards, c of each value, gives C(c, size) / C(n, size), summed over its values: the
    chance that `size` of its own, drawn without putting back, are equal. That is unbiased. Where there are
    fewer rewards than that, the chance is that of new draws under a Dirichlet distribution over the values,
    which the other prompts supply: a prompt that never passed in 4 may pass in 64. Rewards that were equal
    everywhere stay so: what was never seen has no estimate.
    """
    groups = [list(group) for group in values if len(group)]
    if not groups:
        raise ValueError("an expected share needs at least one prompt with a reward")
    if size < 1:
        raise ValueError(f"a group of {size} rewards is none; allowed: at least 1")
    counts = [Counter(group) for group in groups]
    total = Counter(value for group in groups for value in group)
    drawn = sum(total.values())
    prior = {value: count / drawn for value, count in total.items()}
    strength = max(_STRENGTHS, key=lambda s: sum(_log_evidence(c, prior, s) for c in counts))
    return math.fsum(_equal_chance(c, size, prior, strength) for c in counts) / len(counts)


def _equal_chance(counts: Counter[float], size: int, prior: Mapping[float, float], strength: float) -> float:
    """The chance that `size` rewards of one prompt are equal."""
    drawn = sum(counts.values())
    if drawn >= size:
        return sum(math.comb(count, size) for count in counts.values()) / math.comb(drawn, size)
    whole = _log_rising(strength + drawn, size)
    return math.fsum(
        math.exp(_log_rising(strength * share + counts[value], size) - whole)
        for value, share in prior.items()
    )


def _log_evidence(counts: Counter[float], prior: Mapping[float, float], strength: float) -> float:
    """Log-probability of one prompt's rewards under a Dirichlet of this mean and strength."""
    seen = math.fsum(_log_rising(strength * prior[value], count) for value, count in counts.items())
    return seen - _log_rising(strength, sum(counts.values()))


def _log_rising(start: float, count: int) -> float:
    """Log of start (start+1) ... (start+count-1)."""
    return math.lgamma(start + count) - math.lgamma(start)


def limit_that_keeps(lengths: Sequence[int], share: float) -> int:
    """The smallest limit that at least this share of the lengths stays within."""
    if not lengths:
        raise ValueError("a limit needs at least one length")
    return sorted(lengths)[max(0, math.ceil(share * len(lengths)) - 1)]


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


def drift(values: Numbers) -> Drift | None:
    """The Mann-Kendall test: pairs that rise less pairs that fall; None for fewer than three.

    Ties count for neither, and lower the variance (Kendall 1975, Rank Correlation Methods). The normal
    approximation with its correction of 1. A long series is thinned evenly.
    """
    y = _thinned(_finite(values))
    n = y.size
    if n < 3:
        return None
    i, j = np.triu_indices(n, k=1)
    balance = float(np.sign(y[j] - y[i]).sum())
    _, ties = np.unique(y, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18.0
    score = math.copysign(max(abs(balance) - 1.0, 0.0), balance) / math.sqrt(variance) if variance else 0.0
    return Drift(score, _above(score), _above(-score))


def _above(score: float) -> float:
    """Chance of a standard normal above this."""
    return 0.5 * math.erfc(score / math.sqrt(2.0))


def _thinned(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if values.size <= _MAX_TREND_POINTS:
        return values
    return values[np.linspace(0, values.size - 1, _MAX_TREND_POINTS).astype(int)]


def paired_difference(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of the differences prompt by prompt, with the interval that drawing other prompts would give.

    A percentile bootstrap over pairs: what makes a prompt hard is in both of its values and cancels.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values can't be paired with {len(after)}")
    return mean_interval([[b - a] for a, b in zip(before, after, strict=True)], confidence)


def difference(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean after less mean before, of prompts that are not the same ones: each side is drawn anew.

    A percentile bootstrap, wider than `paired_difference` of equal prompts.
    """
    first, second = (np.asarray(values, dtype=np.float64) for values in (before, after))
    if not first.size or not second.size:
        raise ValueError("a difference needs at least one prompt with a reward on each side")
    mean = float(second.mean() - first.mean())
    if min(first.size, second.size) == 1:
        return Interval(mean, None, None)
    generator = np.random.default_rng(0)
    draws = [
        values[generator.integers(values.size, size=(_RESAMPLES, values.size))].mean(axis=1)
        for values in (first, second)
    ]
    outside = (1.0 - confidence) / 2.0
    low, high = np.quantile(draws[1] - draws[0], [outside, 1.0 - outside])
    return Interval(mean, float(low), float(high))


def _finite(values: Numbers) -> NDArray[np.float64]:
    array = _with_nan(values)
    return array[np.isfinite(array)]


def _with_nan(values: Numbers) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
