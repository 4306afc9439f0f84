"""JSON that every strict parser reads: one line, plain ASCII, null for what isn't a finite number."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.errors import CheckpointError
from muster.files import complete_lines

Line = dict[str, Any]
"""A line of a run's files: foreign data, as JSON gives it."""


def to_json(value: object) -> str:
    """The value as one line; control and direction characters in texts come out as escapes."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: object) -> object:
    """The value in JSON's types: NaN and infinities as null, anything foreign as its text."""
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case _:
            # A number of another library (numpy's float32) is one; the rest (dates, bytes) has a text.
            try:
                return _plain(float(value))  # pyright: ignore[reportArgumentType]
            except (TypeError, ValueError):
                return str(value)


def read_lines(path: Path) -> list[Line]:
    """The file's lines; a last one that is not whole yet, or was cut by a crash, is left away."""
    return parse_lines(path, complete_lines(path))


def parse_lines(path: Path, lines: Sequence[bytes]) -> list[Line]:
    """The objects of a file's lines; raises CheckpointError for one that holds none, but for the last."""
    read: list[Line] = []
    for number, line in enumerate(lines, start=1):
        try:
            read.append(_object(line))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise CheckpointError(
                f"{path}, line {number} is not a JSON object: {line[:80]!r}. The file was changed after the "
                "run wrote it; take the line out or restore the file."
            ) from error
    return read


def _object(line: bytes) -> Line:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} instead of an object")
    return value
