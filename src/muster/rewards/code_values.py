"""What a program gave against what a test expects; the program's word counts as a value and nothing more."""

import json
from collections.abc import Mapping
from math import isclose

from muster.rewards.code_tests import CallTest
from muster.sandbox.harness import decoded


class NotAValueError(ValueError):
    """The call raised, or what came from it can't be read."""


def same_output(written: str, expected: str) -> bool:
    """The texts are equal, blanks at the ends of lines and blank lines at the end aside."""
    return _lines(written) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def value_of(line: str) -> object:
    """The value that the harness reports; what else stands there is refused."""
    try:
        reported = json.loads(line)
        if not isinstance(reported, dict) or reported.keys() != {"returned"}:
            raise NotAValueError("the call raised")
        return decoded(reported["returned"])
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise NotAValueError(str(error)) from error


def is_same(value: object, test: CallTest, tolerance: float) -> bool:
    """The value is what the test expects."""
    if test.is_about_truth:
        return bool(value) == test.expected
    return _same(value, test.expected, tolerance, exact=test.has_exact_types)


def _same(value: object, expected: object, tolerance: float, *, exact: bool) -> bool:
    if isinstance(expected, float) or isinstance(value, float):
        return (
            isinstance(value, int | float)
            and isinstance(expected, int | float)
            and _close(value, expected, tolerance)
        )
    if isinstance(expected, Mapping):
        return (
            isinstance(value, Mapping)
            and value.keys() == expected.keys()
            and all(_same(value[key], inner, tolerance, exact=exact) for key, inner in expected.items())
        )
    if isinstance(expected, list | tuple):
        kinds = (type(expected),) if exact else (list, tuple)
        return (
            isinstance(value, kinds)
            and len(value) == len(expected)
            and all(_same(a, b, tolerance, exact=exact) for a, b in zip(value, expected))
        )
    return value == expected


def _close(value: float, expected: float, tolerance: float) -> bool:
    try:
        return value == expected or isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return False
