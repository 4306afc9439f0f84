"""What is wrong with a configuration, one line for each setting: where, path, value, what is allowed."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from muster.config.describing import allowed, field_at, fields, table_model
from muster.config.moved import GONE, MOVED
from muster.config.sections import Config
from muster.config.toml import toml_value
from muster.redaction import HIDDEN, is_secret_name, redacted, without_secrets

_MAX_SHOWN = 80
MAX_PROBLEMS = 50
"""That are told of fields which are wrong by themselves."""


class Problem(NamedTuple):
    """A setting that can't stay as it is."""

    keys: tuple[str, ...]
    says: str
    """What it is, what is allowed, why, and a setting that works."""
    involves: tuple[str, ...] = ()
    """The other fields that the rule reads."""
    is_missing: bool = False
    """The field must be given and isn't."""

    @property
    def path(self) -> str:
        """As in a flag."""
        return ".".join(self.keys)


def wrong(path: str, value: object, rule: str, involves: tuple[str, ...] = ()) -> Problem:
    """A problem of a setting that is there: its value and what is allowed."""
    keys = tuple(path.split("."))
    return Problem(keys, f"is {_shown_at(keys, value)}; allowed: {rule}", involves)


def shown(value: object) -> str:
    """The value as TOML, cut where it is long."""
    plain = without_secrets(value)
    try:
        text = redacted(toml_value(plain))
    except AssertionError:
        text = redacted(repr(plain))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _shown_at(keys: Sequence[str], value: object) -> str:
    """The value, hidden where its name says that it is a secret."""
    return HIDDEN if is_secret_name(keys[-1]) else shown(value)


def line_of(problem: Problem, source: str, flags: Mapping[str, str]) -> str:
    """The problem as one line that starts with the file or the flag it comes from."""
    for flag in flags:
        if problem.path == flag or problem.path.startswith(f"{flag}."):
            source = "command line"
    return f"{source}: {problem.path} {problem.says}"


def unwritable(value: object, keys: tuple[str, ...] = ()) -> Iterator[Problem]:
    """A problem for each text in the tree that no UTF-8 file can hold."""
    match value:
        case Mapping():
            for key, item in value.items():
                yield from unwritable(item, (*keys, key))
        case tuple():
            for item in value:
                yield from unwritable(item, keys)
        case str() if any("\ud800" <= letter <= "\udfff" for letter in value):
            yield Problem(keys, f"is {value!r}; allowed: text that UTF-8 can hold")
        case _:
            pass


def field_problems(error: ValidationError, tree: Mapping[str, object]) -> list[Problem]:
    """One problem for each field that is wrong by itself, unknown or missing."""
    found: dict[tuple[str, ...], Problem] = {}
    errors = error.errors(include_url=False)
    for details in errors[:MAX_PROBLEMS]:
        keys = _field_keys(details["loc"])
        value = _value_at(tree, keys)
        if details["type"] == "extra_forbidden":
            new = [_unknown(keys, value)]
        elif details["type"] == "missing" and value is None:
            new = list(_missing(keys))
        else:
            info = field_at(".".join(keys))
            rule = str(details.get("ctx", {}).get("error", ""))
            new = [wrong(".".join(keys), value, rule or (allowed(info) if info else "a table"))]
        found |= {problem.keys: problem for problem in new if problem.keys not in found}
    if more := len(errors[MAX_PROBLEMS:]):
        found["",] = Problem(("configuration",), f"has {more:,} problems more")
    return list(found.values())


def _field_keys(loc: Sequence[str | int]) -> tuple[str, ...]:
    """The path of the field that an error lies in: what is inside a field's value is left away."""
    keys: list[str] = []
    for part in loc:
        keys.append(str(part))
        info = field_at(".".join(keys))
        if info is None or table_model(info.annotation) is None:
            break
    return tuple(keys)


def _value_at(tree: object, keys: Sequence[str]) -> object:
    """What the tree holds at this path; None where it holds nothing."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _missing(keys: tuple[str, ...]) -> Iterator[Problem]:
    """The field that must be given; of a section that is absent, each of its fields that must be given."""
    prefix = ".".join(keys)
    for field in fields():
        if field.is_required and (field.path == prefix or field.path.startswith(f"{prefix}.")):
            says = f"is missing; allowed: {field.allowed}. {field.doc}"
            yield Problem(tuple(field.path.split(".")), says, is_missing=True)


def _unknown(keys: tuple[str, ...], value: object) -> Problem:
    """A key that isn't one, with the nearest that is."""
    path = ".".join(keys)
    if moved := MOVED.get(path):
        return Problem(keys, f"= {_shown_at(keys, value)} has moved: write {moved} = {shown(value)}")
    if instead := GONE.get(path):
        return Problem(keys, f"= {_shown_at(keys, value)} is no setting any more: {instead}")
    given = f"= {_shown_at(keys, value)} is unknown"
    nearest = _nearest(".".join(keys))
    if nearest:
        return Problem(keys, f"{given}; did you mean {nearest}?")
    section = field_at(keys[0])
    model = table_model(section.annotation) if section and len(keys) > 1 else Config
    names = ", ".join(model.model_fields) if model else ""
    return Problem(keys, f"{given}; known here: {names}")


def _nearest(path: str) -> str | None:
    """The known path most like this one: of the same name elsewhere, else of a similar name."""
    known = [field.path for field in fields()]
    name = path.rpartition(".")[2]
    if "." not in path:
        matches = difflib.get_close_matches(path, list(Config.model_fields), n=1)
        return matches[0] if matches else next((other for other in known if other.endswith(f".{name}")), None)
    same_name = [other for other in known if other.endswith(f".{name}")]
    return next(iter(same_name or difflib.get_close_matches(path, known, n=1, cutoff=0.75)), None)
