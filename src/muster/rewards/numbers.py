"""What a reward gave, as a number: booleans, numpy scalars and 0-d tensors count, texts and NaN don't."""

import inspect
import reprlib
from decimal import Decimal
from math import isfinite
from numbers import Real

MAX_REWARD = 1e15
"""Largest reward, either side of 0: its square still fits the float type of the advantages."""


# The text of a list of a million numbers takes seconds to make, for the sixty characters that are shown.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


class NotANumberError(ValueError):
    """Says what was given where a reward was expected."""


def as_number(value: object) -> float | None:
    """The value as a finite float; None (an abstention) stays None; anything else is refused."""
    if value is None:
        return None
    if inspect.iscoroutine(value):
        value.close()
        raise NotANumberError(
            "gave a coroutine where a number was expected; make the reward `async` and await it"
        )
    if not isinstance(value, Real | Decimal):
        value = _item(value)
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if number != number:
        raise NotANumberError("gave NaN; give None to abstain")
    if not isfinite(number) or abs(number) > MAX_REWARD:
        raise NotANumberError(f"gave a number beyond ±{MAX_REWARD:g}")
    return number


def as_list(values: object) -> list[object]:
    """The elements of a list, a tuple, or what turns itself into a list (arrays, tensors, series)."""
    if inspect.iscoroutine(values):
        values.close()
        raise NotANumberError("gave a coroutine where a list was expected; await it")
    if not isinstance(values, list | tuple) and callable(to_list := getattr(values, "tolist", None)):
        values = to_list()
    if isinstance(values, list | tuple):
        return list(values)
    raise NotANumberError(f"gave {_named(values)} where a list of numbers was expected, one per completion")


def _item(value: object) -> Real | Decimal:
    """The number inside an array scalar or a 0-d tensor."""
    to_item = getattr(value, "item", None)
    if callable(to_item) and getattr(value, "shape", ()) == ():
        inner = to_item()
        if isinstance(inner, Real | Decimal):
            return inner
    raise NotANumberError(f"gave {_named(value)} where a number or None was expected")


def _named(value: object) -> str:
    """Type and a short form of a value whose own text can't be trusted to be short, or to be at all."""
    try:
        text = _SHORT.repr(value).encode("ascii", "backslashreplace").decode("ascii")
    except Exception:
        text = "..."
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:60] + '...'}"
