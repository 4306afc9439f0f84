"""Every setting explained: as TOML with comments, and as rows for JSON."""

from collections.abc import Iterator, Mapping

from muster.config.describing import Field, fields
from muster.config.kinds import Choice
from muster.config.sections import Config
from muster.config.toml import toml_value


def explained_toml(config: Config | None) -> str:
    """Each field with its text, what it may be, and its value (without a configuration, its default).

    A field without a value is a comment, and so is a table that is absent: the text is TOML.
    """
    lines: list[str] = []
    table = ""
    for field in fields():
        section = field.path.rpartition(".")[0]
        if section != table:
            table = section
            lines += ["", f"{_mark(config, section)}[{section}]"]
        lines += _field_lines(config, field, _mark(config, section))
    return "\n".join(lines[1:]) + "\n"


def explained_rows(config: Config | None) -> list[Mapping[str, object]]:
    """One object per field: path, what it may be, default, text, and the value in a configuration."""
    return [dict(_row(config, field)) for field in fields()]


def _row(config: Config | None, field: Field) -> Iterator[tuple[str, object]]:
    yield from field._asdict().items()
    if config is not None:
        value = _value_at(config, field.path)
        yield "value", {"use": value.use, **value.params} if isinstance(value, Choice) else value


def _field_lines(config: Config | None, field: Field, mark: str) -> list[str]:
    value = _value_at(config, field.path) if config and not mark else field.default
    name = field.path.rpartition(".")[2]
    if value is not None:
        setting = f"{mark}{name} = {toml_value(value)}"
    else:
        setting = f"# {name} = {'(must be given)' if field.is_required else '(nothing)'}"
    return [f"# {field.doc} [{field.allowed}]", setting]


def _mark(config: Config | None, section: str) -> str:
    """What makes a line of the section a comment where the section is absent."""
    return "# " if "." in section and _value_at(config, section) is None else ""


def _value_at(config: object, path: str) -> object:
    """The value of the field of this path; None where its table is absent."""
    for name in path.split("."):
        config = getattr(config, name, None)
    return config
