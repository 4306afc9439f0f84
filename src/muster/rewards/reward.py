"""The record of a reward that is ready to be called, and how it reads at the start of a run."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction

from muster.errors import DataError
from muster.nearest import did_you_mean
from muster.records import Score
from muster.rewards.conventions import Convention, Signature, missing_columns

_HOW: Mapping[Convention, str] = {
    "completion": "once per completion",
    "batch": "once per batch, as TRL does",
    "answer": "once per completion, by position",
    "verl": "once per completion, as verl does",
}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What another process needs to load the same reward."""

    spec: str
    """A built-in's name, `module:function`, or `file.py:function` with the file's whole path."""
    options: Mapping[str, object] = field(default_factory=dict)
    """As the configuration has them."""
    convention: Convention | None = None
    """As the configuration has it; None: told by the function's parameters."""
    digest: str | None = None
    """Of the file's bytes when the run loaded it; None for what no file path names."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A reward function, how to call it, and what it counts."""

    name: str
    """Under which its parts, options and metrics go."""
    function: Callable[..., object]
    signature: Signature
    weight: float = 1.0
    """Factor in the sum; 0 keeps the reward in the logs only."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Parameters set by the configuration."""
    levels: tuple[float, ...] = ()
    """The values it gives, where they are few: a count of each is logged."""
    column_options: tuple[str, ...] = ()
    """Options whose value is the name of a column."""
    origin: Origin | None = None
    """None for a function that was handed over itself: a lambda, a closure, an object."""

    @property
    def convention(self) -> Convention:
        """How it is called."""
        return self.signature.convention

    @property
    def runs_in_main(self) -> bool:
        """It asks, by an attribute of this name, to run in the process of the run: for a model or a GPU."""
        return bool(_attribute(self.function, "runs_in_main"))

    @property
    def is_async(self) -> bool:
        """Its calls are awaited, so that many can be under way at once."""
        inner = _unwrapped(self.function)
        return iscoroutinefunction(inner) or iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


def describe(rewards: Sequence[Reward]) -> list[str]:
    """One line per reward: its name, weight, the convention that was chosen and what it asks for."""
    return [_line(reward) for reward in rewards]


def check_columns(rewards: Sequence[Reward], columns: Collection[str], source: str) -> None:
    """Refuses data that lacks a column a reward needs; for before any model loads."""
    problems = []
    for reward in rewards:
        named = [reward.options[name] for name in reward.column_options]
        needed = [
            *missing_columns(reward.signature, columns, reward.options),
            *(str(name) for name in named if name),
        ]
        for name in needed:
            if name not in columns:
                problems.append(
                    f"{source}: reward {reward.name} needs the column {name!r}; found: "
                    f"{', '.join(sorted(columns)) or 'none beside the prompt'}.{did_you_mean(name, columns)} "
                    "Rename it with data.map, or set it in reward.options."
                )
    if problems:
        raise DataError("\n".join(problems))


def count_levels(rewards: Sequence[Reward], scores: Sequence[Score]) -> dict[str, dict[float, int]]:
    """How many completions reached each level, by reward; rewards without levels are left out."""
    return {
        reward.name: {
            level: sum(score.parts.get(reward.name) == level for score in scores) for level in reward.levels
        }
        for reward in rewards
        if reward.levels
    }


def _unwrapped(function: Callable[..., object]) -> Callable[..., object]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _attribute(function: Callable[..., object], name: str) -> object:
    return getattr(function, name, None) or getattr(_unwrapped(function), name, None)


def _line(reward: Reward) -> str:
    signature = reward.signature
    asked = [*signature.supplied, *signature.required]
    asked += [name for name in signature.optional if name not in reward.options]
    shown = ", ".join([*asked, *(["**columns"] if signature.takes_all else [])])
    shown = ", ".join(f"{mine} as {name}" for name, mine in signature.renamed) or shown
    options = ", ".join(f"{name}={value!r}" for name, value in reward.options.items() if value is not None)
    return f"{reward.name} (weight {reward.weight:g}): called {_HOW[signature.convention]}, with {shown}" + (
        f"; {options}" if options else ""
    )
