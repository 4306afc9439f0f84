"""JSON as a grader reads it: strict, and at a cost that the writer of the text can't set."""

import json
import re
from collections.abc import Callable
from math import isfinite

MAX_DEPTH = 50
"""JSON nested deeper counts as invalid, on every machine: Python's own limit depends on who calls."""

Pairs = list[tuple[str, object]]

# An unfinished string goes on to the end: looking for its quote from every quote again would take the
# square of the length.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def parsed(
    text: str,
    *,
    make_object: Callable[[Pairs], object],
    make_number: Callable[[str], object] | None = None,
) -> object:
    """The JSON value of the text, without NaN and infinities; ValueError where it isn't JSON."""
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", _STRING.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if not 0 <= depth <= MAX_DEPTH:
            raise ValueError(f"brackets that close nothing, or nested deeper than {MAX_DEPTH} levels")
    return json.loads(
        text,
        object_pairs_hook=make_object,
        parse_constant=_refuse_constant,
        parse_int=make_number or int,
        parse_float=make_number or _finite,
    )


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError(f"{digits[:60]} is too large")
    return value
