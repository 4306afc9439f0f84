"""A configuration as TOML text, such that loading it gives an equal configuration."""

import json
import re
from collections.abc import Mapping
from datetime import date, time

from pydantic import BaseModel

from muster.config.kinds import Choice
from muster.config.sections import Config
from muster.escaping import escape_toml

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(config: Config) -> str:
    """The whole configuration, defaults included; a field without a value is left out."""
    blocks = [_table(name, getattr(config, name)) for name in Config.model_fields]
    return "\n".join(blocks)


def _table(path: str, section: BaseModel) -> str:
    """A section as a TOML table, the tables inside it after its own values."""
    lines, tables = [f"[{path}]\n"], []
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel) and not isinstance(value, Choice):
            tables.append("\n" + _table(f"{path}.{name}", value))
        elif value is not None:
            lines.append(f"{name} = {toml_value(value)}\n")
    return "".join(lines + tables)


def toml_value(value: object) -> str:
    """One value as TOML, on one line."""
    match value:
        case Choice():
            return toml_value({"use": value.use, **value.params} if value.params else value.use)
        case Mapping():
            pairs = [f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items()]
            return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
        case list() | tuple():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case _:
            return _scalar(value)


def _scalar(value: object) -> str:
    """A value that holds no others, as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # JSON's escapes are TOML's; what a terminal would act on, or not show, is escaped as well.
            return escape_toml(json.dumps(value, ensure_ascii=False))
        case date() | time():
            return value.isoformat()
        case _:
            raise AssertionError(f"TOML has no {type(value).__name__}")


def toml_key(key: str) -> str:
    """A key as TOML, quoted where it has to be."""
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)
