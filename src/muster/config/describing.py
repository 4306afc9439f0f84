"""What each field is, for a reader: its type in words, its default, its text."""

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from muster.config.kinds import Choice
from muster.config.sections import Config

_NOUNS: Mapping[object, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("text", "texts"),
    object: ("anything", "anything"),
    Choice: ('a name, "module:function", or a table { use = "name", parameter = value }', "names"),
}


class Field(NamedTuple):
    """One field of the configuration, for help and documentation."""

    path: str
    """`section.field`, as in a flag."""
    allowed: str
    """What it may be, in words."""
    default: object
    """None where the field may be absent, or must be given."""
    is_required: bool
    doc: str


def fields() -> tuple[Field, ...]:
    """Every field of every section, in order."""
    return tuple(_fields_of(Config, ""))


def _fields_of(model: type[BaseModel], prefix: str) -> Iterator[Field]:
    """The fields of a model; those of a table inside it come under the table's name."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        inner = table_model(info.annotation)
        if inner is not None:
            yield from _fields_of(inner, f"{path}.")
        else:
            yield _describe(path, info)


def _describe(path: str, info: FieldInfo) -> Field:
    default = info.get_default(call_default_factory=True) if not info.is_required() else None
    return Field(
        path=path,
        allowed=allowed(info),
        default=None if default is PydanticUndefined else default,
        is_required=info.is_required(),
        doc=" ".join((info.description or "").split()),
    )


def table_model(annotation: object) -> type[BaseModel] | None:
    """The model of a field that is a table of its own fields; None for any other field."""
    for option in (annotation, *get_args(annotation)):
        if isinstance(option, type) and issubclass(option, BaseModel) and option is not Choice:
            return option
    return None


def field_at(path: str) -> FieldInfo | None:
    """The field of this path; None where there is none (the keys of free tables included)."""
    model: type[BaseModel] | None = Config
    info: FieldInfo | None = None
    for name in path.split("."):
        if model is None or name not in model.model_fields:
            return None
        info = model.model_fields[name]
        model = table_model(info.annotation)
    return info


def is_text_only(path: str) -> bool:
    """The field takes a text and nothing else, so that a flag's value is one as it stands."""
    info = field_at(path)
    if info is None or table_model(info.annotation):
        return False
    kinds = {_plain(option) for option in _options(info.annotation)} - {type(None)}
    return kinds == {str} or (bool(kinds) and all(get_origin(kind) is Literal for kind in kinds))


def allowed(info: FieldInfo) -> str:
    """What a field may be, in words."""
    return _words(info.annotation, info.metadata)


def _words(annotation: object, metadata: Sequence[object] = (), *, plural: bool = False) -> str:
    """A type in words, with its bounds."""
    options = [option for option in _options(annotation) if option is not type(None)]
    if len(options) == 1 and get_origin(options[0]) is Annotated:
        inner, *bounds = get_args(options[0])
        return _words(inner, (*metadata, *bounds), plural=plural)
    texts = [_one(option, plural=plural) for option in options]
    bounds = _bounds(metadata, plural=plural)
    return " or ".join(texts) + (f", {bounds}" if bounds else "")


def _one(kind: object, *, plural: bool) -> str:
    """One type in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in args)
    if origin is tuple and args[-1] is Ellipsis:
        return f"a list of {_words(args[0], plural=True)}"
    if origin is tuple:
        return f"a list of {len(args)} {_words(args[0], plural=True)}"
    if table_model(kind) or origin in (dict, Mapping):
        return "a table"
    return _NOUNS[kind][1 if plural else 0]


def _bounds(metadata: Sequence[object], *, plural: bool) -> str:
    """The bounds among the metadata, in words."""
    words: list[str] = []
    for bound in metadata:
        match bound:
            case Ge(ge=low):
                words.append(f"at least {low}")
            case Gt(gt=low):
                words.append(f"above {low}")
            case Le(le=high):
                words.append(f"at most {high}")
            case Lt(lt=high):
                words.append(f"below {high}")
            case MinLen() if not plural:
                words.append("not empty")
            case _:
                pass
    return " and ".join(words)


def _options(annotation: object) -> tuple[object, ...]:
    """The members of a union, or the type alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _plain(kind: object) -> object:
    """The type without its bounds."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind
