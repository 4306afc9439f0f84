"""Flags that set a field of the configuration: `--optim.lr 2e-6`, `--optim.lr=2e-6`."""

import re
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from muster.errors import ConfigError
from muster.redaction import HIDDEN, is_secret_name

_FLAG = re.compile(r"--(?P<path>[A-Za-z_]+\.[^=]*)(=(?P<value>.*))?", re.DOTALL)
_GATHERED = "--section.key"

Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name=_GATHERED,
        negative="",
        show_default=False,
        help="Sets a field of the configuration: --optim.lr 2e-6. `muster config` lists them.",
    ),
]
"""Settings as `optim.lr=2e-6`, for a verb's signature."""


def about(text: str, *names: str) -> Parameter:
    """A parameter's help, and its names where they are not the function's own."""
    return Parameter(name=names or None, help=text, negative="")


# For the signatures of verbs.
Json = Annotated[bool, about("Print JSON instead of text.", "--json")]
Resume = Annotated[bool, about("Go on with the run from its newest whole checkpoint.")]
Requeue = Annotated[
    bool,
    about("Exit with 75 once a signal has stopped and saved the run, and go on with it if it is there."),
]
Profile = Annotated[bool, about("Write a trace of two steps, trace.json, into the run's folder.")]


def gather_overrides(tokens: Sequence[str]) -> list[str]:
    """The tokens with each `--section.key value` as `--section.key section.key=value`.

    A setting without a value is switched on: `--model.gradient_checkpointing`. ConfigError where it is
    nothing to switch.
    """
    gathered: list[str] = []
    rest = iter(range(len(tokens)))
    for place in rest:
        match = _FLAG.fullmatch(tokens[place])
        if match is None or match["path"] == _GATHERED[2:]:
            gathered.append(tokens[place])
            continue
        value = match["value"]
        if value is None:
            following = tokens[place + 1] if place + 1 < len(tokens) else "--"
            is_switch = following.startswith("--")
            value = _switched_on(match["path"]) if is_switch else following
            if not is_switch:
                next(rest)
        gathered.append(f"{_GATHERED}={match['path']}={value}")
    return gathered


def _switched_on(path: str) -> str:
    """What a setting without a value is given."""
    # Most calls need no field's type, and so none of the configuration.
    from muster.config.describing import allowed, field_at

    field = field_at(path)
    if field is not None and field.annotation is not bool:
        raise ConfigError(f"--{path} has no value; allowed: {allowed(field)}")
    return "true"


def as_mapping(overrides: Sequence[str]) -> dict[str, str]:
    """The settings by their path; one that is given twice is refused."""
    settings: dict[str, str] = {}
    for override in overrides:
        path, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"{_GATHERED} is {override!r}. Give a setting as --optim.lr 2e-6.")
        if path in settings:
            both = [settings[path], value] if not is_secret_name(path.rpartition(".")[2]) else [HIDDEN] * 2
            raise ConfigError(f"--{path} is given twice: {' and '.join(both)}. Keep one.")
        settings[path] = value
    return settings
