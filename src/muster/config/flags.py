"""Flags on top of a file's values: `optim.lr` -> `2e-6`."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.config.describing import is_text_only
from muster.config.paths import resolved

Tree = dict[str, object]


def put_flags(tree: Tree, flags: Mapping[str, str], folders: Sequence[Path]) -> None:
    """Puts each flag's value into the tree, in place of what was there; `null` takes it away."""
    for path, text in flags.items():
        *parents, name = path.split(".")
        table = _table(tree, parents)
        if text == "null":
            table.pop(name, None)
        else:
            table[name] = resolved(frozen(_literal(path, text)), path, folders)


def _table(tree: Tree, parents: Sequence[str]) -> Tree:
    """The table at this path, made where there is none.

    A function chosen by name alone becomes a table, so that `--algo.objective.low 0.1` keeps the name.
    """
    for parent in parents:
        inner = tree.get(parent)
        table: Tree = inner if isinstance(inner, dict) else {}
        if isinstance(inner, str) and parents[0] == "algo":
            table = {"use": inner}
        tree[parent] = table
        tree = table
    return tree


def _literal(path: str, text: str) -> object:
    """The flag's value: TOML where it is TOML and the field isn't one of texts only, else the text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    # A text with a line break could bring keys of its own.
    if set(parsed) != {"value"} or (is_text_only(path) and not isinstance(parsed["value"], str)):
        return text
    return parsed["value"]


def frozen(value: object) -> object:
    """A copy in which None counts as not given, lists are tuples and paths are texts, at every depth."""
    match value:
        case Mapping():
            return {str(key): frozen(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return tuple(frozen(item) for item in value)
        case Path():
            return str(value)
        case _:
            return value
