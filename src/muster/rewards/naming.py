"""Names of rewards: readable, the same in metrics and options, and no two alike."""

import functools
import re
from collections.abc import Callable, Iterable

_MAX_NAME = 60


def function_name(function: Callable[..., object]) -> str:
    """A readable name for anything that can be called.

    `def` and built-in: its name; lambda: `lambda`; partial: that of the function inside; bound
    method: `Class.method`; an object with `__call__`: its `__name__` if it has one, else its class.
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name:
        return safe_name(type(function).__name__)
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, type) and hasattr(function, "__func__"):
        name = f"{type(owner).__name__}.{name}"
    return safe_name(name)


def safe_name(name: str) -> str:
    """The name with nothing in it that means something in a metric's name, a path or a terminal."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_.")[:_MAX_NAME] or "reward"


def distinct_names(names: Iterable[str]) -> list[str]:
    """The names in their order; a name seen before gets a number: `lambda`, `lambda_2`."""
    taken: set[str] = set()
    result: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        result.append(candidate)
    return result
