"""Tasks that are made, not collected: those of the package reasoning-gym (extra `tasks`), named in one line.

    reasoning_gym:chain_sum?min_terms=2&max_terms=3&size=500&seed=1

`size` (500) and `seed` (0) are Muster's, the rest are the task's own options. reasoning-gym seeds row i
with seed + i, so its seeds 1 and 2 have all but one row in common; here every seed has a stretch of rows
of its own, and data of another seed is other data.

Each task brings the rule that scores its answers. Nothing a model wrote is run by it: tasks whose rule
would are refused by name, and an audit hook refuses what this list has missed.
"""

import importlib
import json
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

from muster.errors import ConfigError, RewardError
from muster.nearest import did_you_mean
from muster.sandbox.harness import decoded, encoded

PREFIX = "reasoning_gym:"
MAX_SIZE = 2**20
"""Most rows of a task, and how far apart two seeds are."""
MAX_SEED = 4095
"""The largest seed: some tasks' generators take 32 bits."""

_RUNS_TEXT = "scores an answer by running it as Python"
_UNREPEATABLE = "is made otherwise in every process, so that no run on it could be repeated or resumed"
_REFUSED = {
    "binary_matrix": _RUNS_TEXT,
    "composite": "is made of other tasks, which one line can't name",
    "countdown": _RUNS_TEXT,
    "intermediate_integration": _RUNS_TEXT,
    "isomorphic_strings": _UNREPEATABLE,
    "knight_swap": _UNREPEATABLE,
    "list_functions": _UNREPEATABLE,
    "n_queens": _RUNS_TEXT,
    "polynomial_multiplication": _RUNS_TEXT,
    "puzzle24": _RUNS_TEXT,
    "ransom_note": _UNREPEATABLE,
    "simple_integration": _RUNS_TEXT,
    "spiral_matrix": _RUNS_TEXT,
    "string_insertion": _RUNS_TEXT,
    "word_ladder": _UNREPEATABLE,
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as a line names it."""

    name: str
    """As reasoning-gym has it."""
    size: int = 500
    """Rows."""
    seed: int = 0
    """Which stretch of rows."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The task's own options."""


class RunsTextError(Exception):
    """A rule was about to run what a model wrote."""


class Guard(threading.local):
    """What the thread at hand may not do while an answer is scored."""

    own_texts: frozenset[str] | None = None
    """Texts of the task itself, which its rule may run; None while nothing is scored."""
    has_refused = False
    """Some other text was to be run."""


_guard = Guard()


def is_task(path: str | Path) -> bool:
    """The text names a task, and no file."""
    return str(path).startswith(PREFIX)


def read_task(spec: str) -> Task:
    """The task that the line names; ConfigError where there is no such task or option."""
    name, _, query = spec.removeprefix(PREFIX).partition("?")
    options = _options(spec, query)
    size, seed = options.pop("size", Task.size), options.pop("seed", Task.seed)
    _check_name(spec, name)
    _check_whole(spec, "size", size, 1, MAX_SIZE)
    _check_whole(spec, "seed", seed, 0, MAX_SEED)
    known = [known.name for known in fields(_registry()[name][1]) if known.name not in ("size", "seed")]
    for option in options:
        if option not in known:
            raise ConfigError(
                f"{spec}: the task {name} has no option {option!r}; it has: {', '.join(known) or 'none'}."
                f"{did_you_mean(option, known)}"
            )
    return Task(name=name, size=int(str(size)), seed=int(str(seed)), options=options)


def make_rows(spec: str) -> Iterator[dict[str, object]]:
    """The rows of a task: prompt and answer, and for its scorer `task` and, as JSON text, `entry`."""
    data = _data(spec)
    for entry in data:
        told = {name: entry[name] for name in ("question", "answer", "metadata")}
        yield {
            "prompt": entry["question"],
            "answer": entry["answer"],
            "task": spec,
            "entry": json.dumps(encoded(told)),
        }


def score_answer(spec: str, entry: str, answer: str) -> float:
    """What the task's own rule gives the answer to the question that `entry` holds, from 0 to 1.

    An answer on which the rule fails is one that it can't read: 0. RewardError where it fails on the
    entry's own answer as well.
    """
    rule, told = _data(spec).score_answer, decoded(json.loads(entry))
    try:
        score = score_by(rule, told, answer)
        if score is not None:
            return score
        own = told.get("answer") if isinstance(told, dict) else None
        if isinstance(own, str) and score_by(rule, told, own) is None:
            raise RewardError(
                f"{spec}: the task's rule fails on the row's own answer, {own!r}, too. Score rows that this "
                "version of reasoning-gym made, or take another task."
            )
        return 0.0
    except RunsTextError as error:
        raise RewardError(
            f"{spec}: the task {_RUNS_TEXT}, which Muster does not allow. Take another."
        ) from error


def score_by(rule: Callable[[str, Any], float], entry: object, answer: str) -> float | None:
    """What the rule gives, kept from running text that is not the entry's own; None where it fails."""
    _watch_for_running()
    _guard.own_texts, _guard.has_refused = frozenset(_texts(entry)), False
    try:
        score = float(rule(answer, entry))
    except Exception:
        score = None
    finally:
        _guard.own_texts = None
    if _guard.has_refused:
        raise RunsTextError("the rule was about to run text of a model")
    return score


def refuse_shared_rows(path: str, held_out: str) -> None:
    """Refuses held-out data from the very stretch of rows that is trained on."""
    if not (is_task(path) and is_task(held_out)):
        return
    ours, theirs = read_task(path), read_task(held_out)
    if (ours.name, ours.seed) == (theirs.name, theirs.seed):
        raise ConfigError(
            f"data.eval_path is {held_out}: it has the seed of data.path, {ours.seed}, so what is trained on "
            f"is not held out. Give it another, such as seed={ours.seed + 1}."
        )


def _options(spec: str, query: str) -> dict[str, object]:
    """The options behind the question mark: JSON where it is, else text."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise ConfigError(f"{spec}: {error}. Write name?option=value&option=value.") from error
    options: dict[str, object] = {}
    for name, value in pairs:
        if name in options:
            raise ConfigError(f"{spec}: the option {name!r} is given twice. Keep one.")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _check_name(spec: str, name: str) -> None:
    registry = _registry()
    if name not in registry:
        offered = [known for known in sorted(registry) if known not in _REFUSED]
        raise ConfigError(
            f"{spec}: reasoning-gym has no task {name!r}.{did_you_mean(name, offered)} It has: "
            f"{', '.join(offered)}."
        )
    if name in _REFUSED:
        raise ConfigError(f"{spec}: the task {name} {_REFUSED[name]}. Take another.")


def _check_whole(spec: str, name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{spec}: {name} is {value!r}; a whole number from {low} to {high} is expected.")


def _library() -> ModuleType:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ConfigError(
            f"Tasks named {PREFIX}... need the extra `tasks`: pip install 'muster-rl[tasks]' ({error})."
        ) from error


def _registry() -> Mapping[str, Any]:
    """Classes of data and options by name."""
    _library()
    return importlib.import_module("reasoning_gym.factory").DATASETS


@lru_cache(maxsize=64)
def _data(spec: str) -> Any:
    """The task's rows, made as they are asked for, and its scorer."""
    task = read_task(spec)
    try:
        return _library().create_dataset(
            task.name, size=task.size, seed=task.seed * MAX_SIZE, **dict(task.options)
        )
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"{spec}: the task {task.name} can't be made so: {error}.") from error


def _texts(value: object) -> Iterator[str]:
    """Every text in a value."""
    if isinstance(value, str):
        yield value
    inner: Collection[object] = ()
    if isinstance(value, Mapping):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inner = value
    for item in inner:
        yield from _texts(item)


@lru_cache(maxsize=1)
def _watch_for_running() -> None:
    """From here on, a scorer that would run a model's text is stopped; a hook stays for the process' life."""
    sys.addaudithook(_refuse_running)


def _refuse_running(event: str, arguments: tuple[object, ...]) -> None:
    """Raises where text is compiled that is neither a module's nor the task's own."""
    if event != "compile" or _guard.own_texts is None:
        return
    source, name = arguments[:2]
    text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
    # "<unknown>" is a literal that is read, not run; a module's text has its file's name.
    if name == "<string>" and text not in _guard.own_texts:
        _guard.has_refused = True
        raise RunsTextError
