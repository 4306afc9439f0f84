"""Learning-rate factors over updates; no update has rate 0."""

import math
from collections.abc import Callable

Shape = Callable[[float], float]
"""Progress after warm-up, 0 to 1, to a factor going from 1 towards 0."""

SHAPES: dict[str, Shape] = {
    "constant": lambda _: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def factor(update: int, *, num_updates: int, warmup: int, shape: str, final: float = 0.0) -> float:
    """What the learning rate is multiplied by at this update, counted from 0.

    (u+1)/(w+1) during the w updates of warm-up, then from 1 towards `final` over the rest:
    for w=2, 10 updates, linear: 1/3, 2/3, 1, .875, .75, ... .125.
    """
    if update < warmup:
        return (update + 1) / (warmup + 1)
    span = max(num_updates - warmup, 1)
    return final + (1.0 - final) * SHAPES[shape](min((update - warmup) / span, 1.0))
