"""Which prompts a step draws: a pure function of the seed and of how many were drawn before."""

from functools import lru_cache
from math import ceil
from random import Random


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
