"""From a TOML file and flags to a checked configuration, or to one error that names all that is wrong."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from muster.config.checks import problems
from muster.config.describing import field_at
from muster.config.flags import Tree, frozen, put_flags
from muster.config.messages import Problem, field_problems, line_of, unwritable
from muster.config.moved import as_named_now
from muster.config.paths import resolved
from muster.config.sections import Config
from muster.config.warm_start import with_defaults
from muster.errors import ConfigError
from muster.files import read_whole

MAX_FILE_BYTES = 2**20
"""Largest configuration file; a thousandth of it is usual."""
MAX_LINE = 200
"""Characters of a line that a message shows."""
MAX_DEPTH = 32
"""Deepest nesting of tables and lists."""
# The parser's memory grows with the square of a key's parts.
_LONG_KEY = re.compile(rf"(?:(?:\b[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}")


def load(path: Path | None, overrides: Mapping[str, str] | None = None) -> Config:
    """The configuration of a TOML file, with flags (`optim.lr` -> `2e-6`) on top.

    A flag's value is read as TOML where it is TOML, else as text; `null` takes the file's value away.
    A relative path in the file (data, model, adapter, `file.py:function`) is looked for in the file's
    own folder, then in the current directory, and becomes absolute where it is found; a name that is
    found in neither stays a name. A flag's path is looked for in the current directory.
    """
    flags = overrides or {}
    folders = [path.parent, Path()] if path else []
    tree = cast("Tree", resolved(frozen(_settings(path)), "", folders)) if path else {}
    put_flags(tree, flags, [Path()])
    return _validated(tree, str(path) if path else "command line", flags)


def from_mapping(values: Mapping[str, Mapping[str, object]]) -> Config:
    """The configuration of sections given as mappings; None counts as not given.

    Relative paths are looked for in the current directory.
    """
    tree = cast("Tree", resolved(frozen(values), "", [Path()]))
    return _validated(tree, "configuration", {})


def _settings(path: Path) -> Tree:
    """The file's content; that of a run's folder under the names that settings have now."""
    tree = _read(path)
    return as_named_now(tree) if (path.parent / "meta.json").is_file() else tree


def _read(path: Path) -> Tree:
    """The file's content; refuses what isn't TOML, by line: a key that is given twice, for one."""
    try:
        text = read_whole(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}. Give the path of a TOML file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from error
    if _LONG_KEY.search(text):
        raise ConfigError(f"{path}: a key has more than {MAX_DEPTH} parts. Write it shorter.")
    try:
        return cast("Tree", _flat_enough(tomllib.loads(text)))
    except RecursionError as error:
        raise ConfigError(f"{path}: values are nested too deeply. Write them flatter.") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {_toml_error(str(error), text)}") from error


def _flat_enough(value: object, depth: int = 0) -> object:
    """The value; RecursionError where it is nested deeper than anything that a setting may be."""
    if depth > MAX_DEPTH:
        raise RecursionError
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _flat_enough(inner, depth + 1)
    return value


def _toml_error(message: str, text: str) -> str:
    """The parser's message with the line it speaks of; of a key that is given twice it says so."""
    lines = text.split("\n")
    number = message.rpartition("(at line ")[2].partition(",")[0]
    if message.startswith("Cannot") and message.endswith("(at end of document)"):
        number = str(len(lines))
    if not number.isdigit():
        return f"{message}. Write it as TOML."
    line = lines[int(number) - 1].strip()[:MAX_LINE]
    if message.startswith(("Cannot overwrite", "Cannot declare")):
        return f"line {number}: {line} names what is given before; keep one of the two."
    return f"line {number}: {line} is not TOML: {message}."


def _validated(tree: Tree, source: str, flags: Mapping[str, str]) -> Config:
    """The configuration of the tree; raises one error with every problem there is."""
    found = list(unwritable(tree))
    tree = with_defaults(tree)
    config = _config_and_problems(tree, found)
    bad = {problem.path for problem in found}
    for problem in problems(config) if config else ():
        if not bad & {problem.path, *problem.involves}:
            found.append(problem)
    if found or config is None:
        raise ConfigError("\n".join(line_of(problem, source, flags) for problem in found))
    return config


def _config_and_problems(tree: Tree, found: list[Problem]) -> Config | None:
    """The configuration; where fields are wrong, they are added to `found` and their defaults taken.

    So the rules over several fields can still be held against all the fields that are right.
    """
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        known = {problem.keys for problem in found}
        found.extend(problem for problem in field_problems(error, tree) if problem.keys not in known)
    try:
        return Config.model_validate(_repaired(tree, found))
    except ValidationError:
        return None


def _repaired(tree: Tree, found: list[Problem]) -> Tree:
    """The tree without the fields that are wrong, and with a text for those that must be there."""
    copy = cast("Tree", frozen(tree))
    for problem in found:
        *parents, name = problem.keys
        table = copy
        for parent in parents:
            inner = table.get(parent)
            inner = inner if isinstance(inner, dict) else {}
            table[parent] = inner
            table = inner
        table.pop(name, None)
        info = field_at(problem.path)
        if problem.is_missing or (info and info.is_required()):
            table[name] = "?"
    return copy
