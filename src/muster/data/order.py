"""Which prompts a step draws: a pure function of the seed, of how many were drawn before, and of weights."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from random import Random

import numpy as np
from numpy.typing import ArrayLike

_DRAW = 1
"""Sets the random stream of weighted draws apart from others of the same seed."""


def prompt_order(num_samples: int, seed: int, start: int, count: int, shuffle: bool = True) -> list[int]:
    """Indices of the `count` samples that come after the first `start` draws.

    Every epoch is a permutation of its own; where an epoch ends inside a step, the step goes on
    into the next one, so no prompt is left out and every step is full.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples is {num_samples}; there must be at least one sample to draw.")
    drawn: list[int] = []
    for position in range(start, start + count):
        epoch, place = divmod(position, num_samples)
        drawn.append(_epoch_order(num_samples, seed, epoch)[place] if shuffle else place)
    return drawn


def weighted_draw(
    weights: ArrayLike, seed: int, start: int, count: int, taken: Sequence[int] = ()
) -> list[int]:
    """Indices of `count` samples, drawn without putting back, by their weights.

    The first is sample i with probability w_i / sum(w), each later one so among those that are left: the
    samples of least E_i / w_i, with E_i from an exponential distribution (Efraimidis and Spirakis, Weighted
    random sampling with a reservoir, 2006). `start` counts draws before and names the random stream.
    Those `taken` in the step already come again only where no others are left.
    """
    chances = np.asarray(weights, dtype=np.float64)
    if not chances.size or not (np.isfinite(chances) & (chances > 0)).all():
        raise ValueError("every sample needs a weight above 0, and there must be one to draw")
    seeds = np.random.SeedSequence([seed, start], spawn_key=(_DRAW,))
    generator = np.random.Generator(np.random.Philox(seeds))
    times = np.zeros(chances.size, dtype=np.int64)
    for index, number in Counter(taken).items():
        times[index] = number
    drawn: list[int] = []
    while len(drawn) < count:
        keys = -np.log1p(-generator.random(chances.size)) / chances
        fewest = np.flatnonzero(times == times.min())
        new = fewest[np.argsort(keys[fewest], kind="stable")][: count - len(drawn)]
        times[new] += 1
        drawn += new.tolist()
    return drawn


def num_steps(num_samples: int, prompts_per_step: int, epochs: float) -> int:
    """Steps after which every prompt was drawn `epochs` times; the last step may go beyond."""
    return max(1, ceil(epochs * num_samples / prompts_per_step))


# A step reads from two epochs at most; evaluation and training may take turns.
@lru_cache(maxsize=4)
def _epoch_order(num_samples: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The permutation of one epoch, from a generator that is seeded by what it is for."""
    order = list(range(num_samples))
    Random(f"{seed}/data/{epoch}").shuffle(order)
    return tuple(order)
