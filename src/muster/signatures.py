"""Whether a value from a file fits what a signature asks for; the signature is the schema."""

import inspect
import math
import types
from collections.abc import Callable
from typing import Literal, Union, get_args, get_origin


def parameters_of(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Every parameter by name, annotations as types where they can be."""
    try:
        found = inspect.signature(function, eval_str=True)
    except NameError:
        # Annotations for type checkers alone name what isn't there when the program runs.
        found = inspect.signature(function)
    return dict(found.parameters)


def fits(annotation: object, value: object, *, negative: bool = False) -> bool:
    """Whether a value from a file fits an annotation; numbers are finite, and not negative unless allowed."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return value in parts
    if origin in (Union, types.UnionType):
        return any(fits(part, value, negative=negative) for part in parts)
    if origin is tuple:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(parts)
            and all(fits(*pair, negative=negative) for pair in zip(parts, value, strict=True))
        )
    return _fits_plain(annotation, value, negative)


def _fits_plain(annotation: object, value: object, negative: bool) -> bool:
    """The same for what isn't made of others; an annotation that says nothing fits all."""
    if annotation in (int, float):
        kinds = (int, float) if annotation is float else int
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and (negative or value >= 0)
    if annotation is None or annotation is types.NoneType:
        return value is None
    is_empty = annotation is inspect.Parameter.empty
    return isinstance(value, annotation) if isinstance(annotation, type) and not is_empty else True


def describe(annotation: object, *, negative: bool = False) -> str:
    """The annotation in words, for an error."""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(repr(value) for value in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        # What no file can hold, a tensor say, is left out.
        parts = [part for part in get_args(annotation) if part is not types.NoneType]
        plain = [part for part in parts if part in (bool, int, float, str)] or parts
        return " or ".join(describe(part, negative=negative) for part in plain)
    if get_origin(annotation) is tuple:
        parts = get_args(annotation)
        return f"a list of {len(parts)}: " + ", ".join(describe(part, negative=negative) for part in parts)
    sign = "" if negative else " and not negative"
    words: dict[object, str] = {
        float: f"a number, finite{sign}",
        int: "a whole number" + ("" if negative else ", not negative"),
        bool: "true or false",
    }
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


def annotation_of(parameter: inspect.Parameter) -> object:
    """The parameter's annotation; without one, what its default is of, where that says something."""
    if parameter.annotation is not inspect.Parameter.empty and not isinstance(parameter.annotation, str):
        return parameter.annotation
    default = parameter.default
    if isinstance(default, bool | int | float | str):
        return type(default)
    if isinstance(default, tuple) and default and all(type(item) is float for item in default):
        return tuple[tuple(float for _ in default)]
    return inspect.Parameter.empty
