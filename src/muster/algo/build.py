"""A recipe from names and options: what a configuration's `algo` section becomes.

Every choice is a function whose keyword-only parameters are its options, so the signature is
the schema: names, types and defaults are checked against it, and only there.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import get_args

from muster.algo.advantages import ADVANTAGES
from muster.algo.gates import GATES, Gate
from muster.algo.kl import KLS
from muster.algo.objectives import OBJECTIVES
from muster.algo.ratios import CORRECTIONS
from muster.algo.recipes import RECIPES, Recipe
from muster.algo.weights import WEIGHTS
from muster.callables import FORMS, load_callable
from muster.errors import ConfigError
from muster.nearest import did_you_mean
from muster.signatures import describe, fits

Choice = str | Mapping[str, object] | Callable[..., object]
"""A name, `module:function`, `{use = either, option = value ...}`, or the function itself."""

AXES: Mapping[str, Mapping[str, Callable[..., object]]] = types.MappingProxyType(
    {
        "advantage": ADVANTAGES,
        "objective": OBJECTIVES,
        "correction": CORRECTIONS,
        "gate": GATES,
        "kl": KLS,
        "weights": WEIGHTS,
    }
)


def build(name: str, choices: Mapping[str, Choice] | None = None) -> Recipe:
    """The named recipe with some of its choices replaced; ConfigError names what doesn't fit."""
    recipe = RECIPES.get(name)
    if recipe is None:
        raise ConfigError(f"algo.recipe is {name!r}, but no recipe has that name.{_known(name, RECIPES)}")
    fields: dict[str, object] = {}
    for axis, choice in (choices or {}).items():
        if axis not in AXES:
            raise ConfigError(f"algo.{axis} isn't a choice of a recipe.{_known(axis, AXES)}")
        function = _bind(axis, choice)
        fields[axis] = _as_gate(function) if axis == "gate" else function
    return replace(recipe, **fields)


def options(function: Callable[..., object]) -> dict[str, object]:
    """The options of a function, bound or not, with the values they have."""
    return {name: parameter.default for name, parameter in _parameters(function).items()}


def _bind(axis: str, choice: Choice) -> Callable[..., object]:
    """The chosen function with its options bound."""
    if isinstance(choice, str):
        return _find(axis, choice)
    if not isinstance(choice, Mapping):
        return choice
    given = dict(choice)
    use = given.pop("use", None)
    if not isinstance(use, str):
        raise ConfigError(f"algo.{axis}.use is {use!r}, but must be a name or {FORMS}.")
    function = _find(axis, use)
    parameters = _parameters(function)
    bound = {name: _checked(axis, use, name, value, parameters) for name, value in given.items()}
    return partial(function, **bound) if bound else function


def _find(axis: str, name: str) -> Callable[..., object]:
    """The function of that name on an axis, or the user's own."""
    named = AXES[axis]
    if name in named:
        return named[name]
    if ":" not in name:
        raise ConfigError(
            f"algo.{axis} is {name!r}, but no {axis} has that name.{_known(name, named)} "
            f"A function of your own is named {FORMS}."
        )
    try:
        return load_callable(name)
    except ConfigError as error:
        raise ConfigError(f"algo.{axis}: {error}") from error


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The options that a function takes: its keyword-only parameters."""
    parameters = inspect.signature(function).parameters.items()
    return {name: parameter for name, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def _checked(
    axis: str, use: str, name: str, value: object, parameters: Mapping[str, inspect.Parameter]
) -> object:
    """The value as the signature types it; an option it doesn't have, or that doesn't fit, is refused."""
    place = f"algo.{axis}.{name}"
    if name not in parameters:
        hint = _known(name, parameters) if parameters else " It has no options."
        raise ConfigError(f"{place} isn't an option of {use!r}.{hint}")
    annotation = parameters[name].annotation
    if not fits(annotation, value):
        raise ConfigError(f"{place} is {value!r}, but must be {describe(annotation)}.")
    if isinstance(value, int) and float in (annotation, *get_args(annotation)):
        return float(value)
    return value


def _as_gate(make: Callable[..., object]) -> Gate:
    """The gate that a factory of gates makes."""
    gate = make()
    if not isinstance(gate, Gate):
        raise ConfigError(f"algo.gate must be a function that gives a Gate; this one gives {gate!r}.")
    return gate


def _known(name: str, known: Mapping[str, object]) -> str:
    """The nearest name, or all there are where none is near."""
    return did_you_mean(name, known) or f" There are: {', '.join(known)}."
