"""Runs inside: calls functions of `solution.py` and writes what each returned, a line of JSON per call.

It is told functions and arguments and never what is expected, so a program that reads this file, its
input, or writes lines of its own gains nothing over returning a guess. Values travel tagged by type,
since JSON knows neither tuples nor sets nor keys that aren't text.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

_MAKERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def encoded(value: Any) -> object:
    """The value as JSON; what has no such form becomes the name of its type, which equals nothing."""
    match value:
        case None:
            return None
        case bool() | int() | float() | str():
            return value
        case dict():
            return {"dict": [[encoded(key), encoded(inner)] for key, inner in value.items()]}
        case list() | tuple() | set() | frozenset():
            kind = next(kind for kind, maker in _MAKERS.items() if isinstance(value, maker))
            return {kind: [encoded(inner) for inner in value]}
        case _:
            return {"other": type(value).__name__}


def decoded(value: object) -> Any:
    """The value that `encoded` turned into this; ValueError or TypeError where there is none."""
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a list without its type")
        return value
    [(kind, inner)] = value.items()
    if kind == "dict":
        return {decoded(key): decoded(item) for key, item in inner}
    if kind not in _MAKERS:
        raise ValueError(f"a value of type {inner}")
    return _MAKERS[kind](decoded(item) for item in inner)


def main() -> None:
    """Answers the calls on standard input; the program's own input and output are nothing."""
    calls = json.loads(sys.stdin.buffer.read())
    channel = os.fdopen(os.dup(1), "w", encoding="ascii")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    names = runpy.run_path(str(Path(__file__).with_name("solution.py")), run_name="solution")
    for call in calls:
        channel.write(_answer(names, call) + "\n")
        channel.flush()


def _answer(names: dict[str, object], call: dict[str, object]) -> str:
    """What the call returned, or that it raised; a call that ends the program ends this too."""
    try:
        function = _named(names, str(call["call"]))
        arguments, by_name = decoded(call["args"]), decoded(call["kwargs"])
        return json.dumps({"returned": encoded(function(*arguments, **by_name))})
    except Exception as error:
        return json.dumps({"raised": type(error).__name__})


def _named(names: dict[str, Any], path: str) -> Any:
    """A function, or `Class.method` of a new object of the class."""
    first, *rest = path.split(".")
    found = names[first]
    for name in rest:
        found = getattr(found() if isinstance(found, type) else found, name)
    return found


if __name__ == "__main__":
    main()
