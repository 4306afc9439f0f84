"""Relative paths in a configuration, made absolute where a folder holds what they name."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

PATH_FIELDS = frozenset({"model.path", "model.adapter", "data.path", "data.eval_path"})
"""Fields that name a file, a folder, or something else by a name."""
FUNCTION_FIELDS = re.compile(r"data\.map|data\.environment|reward\.use|optim\.name|algo\.[a-z_]+(\.use)?")
"""Fields that name functions."""


def resolved(value: object, path: str, folders: Sequence[Path]) -> object:
    """The value of the field at `path`, with every path in it that one of the folders holds made absolute.

    The first folder wins; a name that no folder holds stays a name (a hub id, a built-in function).
    """
    match value:
        case Mapping():
            prefix = f"{path}." if path else ""
            return {key: resolved(item, f"{prefix}{key}", folders) for key, item in value.items()}
        case tuple():
            return tuple(resolved(item, path, folders) for item in value)
        case str() if path in PATH_FIELDS:
            return _found(value, folders) or value
        case str() if FUNCTION_FIELDS.fullmatch(path):
            return _found_function(value, folders)
        case _:
            return value


def _found_function(spec: str, folders: Sequence[Path]) -> str:
    """`file.py:function` with the file's absolute path; any other name as it is."""
    file, _, function = spec.rpartition(":")
    return f"{_found(file, folders) or file}:{function}" if file.endswith(".py") else spec


def _found(text: str, folders: Sequence[Path]) -> str | None:
    """The absolute path of what a folder holds under this name; None where none does."""
    for folder in folders:
        try:
            candidate = folder / Path(text).expanduser()
            if text and candidate.exists():
                return str(candidate.absolute())
        except (OSError, RuntimeError, ValueError):
            # Not a path here: too long, a NUL in it, or a home folder that nobody has.
            continue
    return None
