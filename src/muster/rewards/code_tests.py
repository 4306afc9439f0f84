"""Tests of model-written code as a data set has them, and what of each the sandbox is told."""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from muster.sandbox.harness import encoded

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_FORMS = (
    '{"input": ..., "output": ...}, {"call": "name", "args": [...], "expected": ...} '
    'or "assert name(...) == ...", with values written out'
)


@dataclass(frozen=True, kw_only=True)
class InputTest:
    """The program reads one text and prints another."""

    input: str | None
    """None is an empty standard input."""
    output: str


@dataclass(frozen=True, kw_only=True)
class CallTest:
    """A function is called and returns a value."""

    asked: Mapping[str, object]
    """Function and arguments, as the harness reads them."""
    expected: object
    has_exact_types: bool
    """A list is not a tuple: the test was written in Python, not in JSON."""
    is_about_truth: bool = False
    """Any true value will do for True, any other for False: `assert f(1)`."""


Test = InputTest | CallTest


def read_tests(tests: object) -> list[Test]:
    """The tests of a row: a list, one test, or either as JSON text; ValueError where one has another form."""
    if isinstance(tests, str) and not tests.lstrip().startswith("assert"):
        tests = _from_json(tests) if tests.strip() else None
    if tests is None:
        return []
    found = tests if isinstance(tests, list | tuple) else [tests]
    return [_read(number, test) for number, test in enumerate(found, start=1)]


def _from_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"column `tests` is neither a list nor JSON: {error}") from error


def _read(number: int, test: object) -> Test:
    match test:
        case {"output": output, **rest} if rest.keys() <= {"input"}:
            given = rest.get("input")
            return InputTest(input=None if given is None else _text(given), output=_text(output))
        case {"call": str(name), "expected": expected, **rest} if rest.keys() <= {"args", "kwargs"}:
            arguments, by_name = rest.get("args") or [], rest.get("kwargs") or {}
            if _NAME.fullmatch(name) and isinstance(arguments, list | tuple) and isinstance(by_name, Mapping):
                return _call(name, list(arguments), dict(by_name), expected, has_exact_types=False)
        case str(text):
            if found := _from_assert(text):
                return found
        case _:
            pass
    raise ValueError(f"column `tests`: test {number} is {ascii(test)[:120]}; known forms: {_FORMS}")


def _text(value: object) -> str:
    """The text, or the lines of a list, or a number as it is written."""
    if isinstance(value, list | tuple):
        return "".join(f"{line}\n" for line in value)
    return str(value)


def _call(
    name: str, args: list[object], kwargs: dict[str, object], expected: object, **rules: bool
) -> CallTest:
    asked = {"call": name, "args": encoded(args), "kwargs": encoded(kwargs)}
    return CallTest(asked=asked, expected=expected, **rules)


def _from_assert(text: str) -> CallTest | None:
    """`assert name(literals) == literal`, `is` for `==`, or the call alone; None for anything else.

    Only literals are read, nothing is evaluated: an expected value that is computed would have to be
    computed where the program can see it.
    """
    try:
        [statement] = ast.parse(text.strip()).body
        match statement:
            case ast.Assert(
                test=ast.Compare(left=ast.Call() as call, ops=[ast.Eq() | ast.Is()], comparators=[right])
            ):
                return _literal_call(call, ast.literal_eval(right), has_exact_types=True)
            case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call)):
                return _literal_call(call, False, has_exact_types=True, is_about_truth=True)
            case ast.Assert(test=ast.Call() as call):
                return _literal_call(call, True, has_exact_types=True, is_about_truth=True)
            case _:
                pass
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        pass
    return None


def _literal_call(call: ast.Call, expected: object, **rules: bool) -> CallTest | None:
    """The test of a call whose function is a name and whose arguments are literals."""
    name = ast.unparse(call.func)
    args = [ast.literal_eval(argument) for argument in call.args]
    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    if len(named) < len(call.keywords) or not _NAME.fullmatch(name):
        return None
    return _call(name, args, named, expected, **rules)
