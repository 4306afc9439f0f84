"""Environments by name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from muster.callables import digest_of, load_object
from muster.envs.calculator import Calculator
from muster.envs.guessing_game import GuessingGame
from muster.envs.trl import TrlEnvironment, is_trl
from muster.errors import ConfigError
from muster.nearest import did_you_mean

BUILTINS: Mapping[str, Callable[[], object]] = {
    "calculator": Calculator,
    "guessing_game": GuessingGame,
}
"""Those that come with Muster."""
METHODS = ("reset", "step", "reward")


class Named(NamedTuple):
    """What another process needs to load the same environment."""

    spec: str
    """A built-in's name, `module:Name`, or `file.py:Name` with the file's whole path."""
    digest: str | None
    """Of the file's bytes when the run loaded it; None for what no file path names."""


def named(spec: str) -> Named:
    """The name as any process understands it; ConfigError where there is no such built-in or file."""
    if spec in BUILTINS:
        return Named(spec, None)
    place, colon, name = spec.rpartition(":")
    if not place or not name:
        raise ConfigError(
            f"data.environment is {spec!r}, which Muster does not have; it has: {', '.join(BUILTINS)}."
            f"{did_you_mean(spec, BUILTINS)} One of your own is `file.py:Name` or `module:Name`."
        )
    if not place.endswith(".py"):
        return Named(spec, None)
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"data.environment is {spec!r}: there is no file {place!r}.")
    return Named(f"{path}{colon}{name}", digest_of(path))


def load(name: Named) -> Callable[[], object]:
    """What makes a new environment for each episode: a class, or a function without parameters.

    Raises ConfigError for anything else, and for a file that was edited since the run loaded it.
    """
    if name.spec in BUILTINS:
        return BUILTINS[name.spec]
    place = name.spec.rpartition(":")[0]
    if name.digest is not None and digest_of(Path(place)) != name.digest:
        raise ConfigError(f"{place} was changed while the run was on. Put it back, or resume the run.")
    found = load_object(name.spec)
    if not callable(found):
        raise ConfigError(f"{name.spec!r} is {type(found).__name__}; a class is expected.")
    return lambda: _adapted(found())


def _adapted(environment: object) -> object:
    """The environment; one that is written for TRL as one of ours."""
    return TrlEnvironment(environment) if is_trl(environment) else environment


def refuse_incomplete(environment: object, spec: str) -> None:
    """Raises ConfigError where one of the three methods is missing."""
    if missing := [name for name in METHODS if not callable(getattr(environment, name, None))]:
        raise ConfigError(
            f"the environment {spec!r} has no {' and no '.join(missing)}; it needs {', '.join(METHODS)}."
        )
