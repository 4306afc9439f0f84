"""Single values of a row: what kind they are, and what no value may hold."""

import re
from collections.abc import Mapping

MAX_FIELD_CHARS = 16 * 2**20
"""Longest text of one field, in characters."""
MAX_DEPTH = 64
"""Deepest nesting of lists and objects in one field."""

_REFUSED = re.compile("[\x00\ud800-\udfff]")


def is_absent(value: object) -> bool:
    """None, or the NaN that stands for a missing number in tables."""
    return value is None or (isinstance(value, float) and value != value)


def kind_of(value: object) -> str:
    """The kind of a value, in a word for messages; whole and other numbers are one kind."""
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
        case _:
            return type(value).__name__


def refusal(value: object) -> str | None:
    """Why a value can't be used, wherever in it the reason sits; None where it can."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[object] = []
        for item in level:
            if isinstance(item, str):
                if reason := _text_refusal(item):
                    return reason
            elif isinstance(item, Mapping):
                below.extend(item.keys())
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
        if not below:
            return None
        level = below
    return f"is nested deeper than {MAX_DEPTH} levels"


def _text_refusal(text: str) -> str | None:
    if len(text) > MAX_FIELD_CHARS:
        return f"has {len(text)} characters; at most {MAX_FIELD_CHARS} are allowed"
    found = _REFUSED.search(text)
    if not found:
        return None
    name = (
        "a NUL character" if found.group() == "\0" else f"half a surrogate pair (\\u{ord(found.group()):04x})"
    )
    return f"holds {name} at position {found.start()}, which no tokenizer can read"
