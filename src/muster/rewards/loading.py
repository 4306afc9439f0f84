"""Rewards from names, dotted paths and functions, with their weights and options checked."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from muster.callables import FORMS, digest_of, load_callable
from muster.errors import ConfigError, RewardError
from muster.nearest import did_you_mean
from muster.rewards.conventions import SUPPLIED, Convention, Signature, read_signature
from muster.rewards.library import BUILTINS, check_installed
from muster.rewards.naming import distinct_names, function_name, safe_name
from muster.rewards.numbers import as_number
from muster.rewards.reward import Origin, Reward

Function = Callable[..., object]
Use = str | Function


def load_rewards(
    use: Use | Sequence[Use],
    weights: Sequence[float] | None = None,
    options: Mapping[str, Mapping[str, object]] | None = None,
    conventions: Mapping[str, Convention] | None = None,
) -> tuple[Reward, ...]:
    """The rewards, in order: built-in names, `module:function`, `file.py:function`, or functions.

    Options and conventions go by the reward's name: what stands after the colon, or the function's own.
    """
    uses: list[Use] = [use] if isinstance(use, str) or callable(use) else list(use)
    if not uses:
        raise ConfigError("reward.use is empty. Name at least one reward.")
    checked = _checked_weights(weights, len(uses))
    functions = [_function(item) for item in uses]
    names = distinct_names(_name(item) for item in uses)
    given = dict(options or {})
    asked: dict[str, Convention] = dict(conventions or {})
    for setting, name in [*(("options", n) for n in given), *(("convention", n) for n in asked)]:
        if name not in names:
            raise ConfigError(
                f"reward.{setting}.{name}: there is no such reward; in use: {', '.join(names)}."
                f"{did_you_mean(name, names)}"
            )
    return tuple(
        replace(
            _reward(name, function, given.get(name, {}), asked.get(name)),
            weight=weight,
            origin=_origin(item, given.get(name, {}), asked.get(name)),
        )
        for name, item, function, weight in zip(names, uses, functions, checked, strict=True)
    )


def load_named(name: str, origin: Origin) -> Reward:
    """The reward that the origin names, under the name that it has in the run.

    A file that was edited since is refused: half of a run's scores would come from each version.
    """
    place = origin.spec.rpartition(":")[0]
    if origin.digest is not None and digest_of(Path(place)) != origin.digest:
        raise ConfigError(
            f"{place} was changed while the run was on. Put it back, or stop the run and resume it."
        )
    return _reward(name, _function(origin.spec), origin.options, origin.convention)


def _origin(use: Use, options: Mapping[str, object], convention: Convention | None) -> Origin | None:
    if not isinstance(use, str):
        return None
    place, colon, name = use.rpartition(":")
    if not place.endswith(".py"):
        return Origin(spec=use, options=options, convention=convention)
    # The other process may stand elsewhere.
    path = Path(place).expanduser().resolve()
    spec = f"{path}{colon}{name}"
    return Origin(spec=spec, options=options, convention=convention, digest=digest_of(path))


def _function(use: Use) -> Function:
    if not isinstance(use, str):
        if not callable(use) or isinstance(use, type):
            raise RewardError(f"reward.use holds {use!r}, which is no function. Pass a function, or {FORMS}.")
        return use
    if use in BUILTINS:
        check_installed(use, BUILTINS[use])
        return BUILTINS[use].function
    if ":" in use:
        return load_callable(use)
    raise ConfigError(
        f"reward.use names {use!r}, which Muster does not have; it has: {', '.join(BUILTINS)}."
        f"{did_you_mean(use, BUILTINS)} A function of your own is {FORMS}."
    )


def _name(use: Use) -> str:
    return safe_name(use.rpartition(":")[2]) if isinstance(use, str) else function_name(use)


def _checked_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    if weights is None:
        return [1.0] * count
    if len(weights) != count:
        raise ConfigError(
            f"reward.weights has {len(weights)} numbers for {count} rewards: {list(weights)}. "
            f"Give one each: {[1.0] * count}."
        )
    if bad := [weight for weight in weights if not isfinite(weight)]:
        raise ConfigError(f"reward.weights holds {bad[0]}; finite numbers are expected.")
    if weights and not any(weights):
        raise ConfigError("reward.weights are all 0: such rewards are for the logs only. Give one a weight.")
    return [float(weight) for weight in weights]


def _reward(
    name: str, function: Function, given: Mapping[str, object], convention: Convention | None
) -> Reward:
    signature = read_signature(function, convention)
    builtin = next((known for known in BUILTINS.values() if known.function is function), None)
    options = _checked_options(name, function, signature, given)
    return Reward(
        name=name,
        function=function,
        signature=signature,
        # A built-in's options are all bound, so that a column that happens to have the name of one
        # isn't taken for it.
        options=_defaults(function) | options if builtin else options,
        levels=builtin.levels if builtin else _declared_levels(name, function),
        column_options=builtin.column_options if builtin else (),
    )


def _defaults(function: Function) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def _declared_levels(name: str, function: Function) -> tuple[float, ...]:
    """The `levels` attribute of a user's function, or of what a partial wraps."""
    declared = getattr(function, "levels", None) or getattr(getattr(function, "func", None), "levels", ())
    try:
        return tuple(number for value in declared if (number := as_number(value)) is not None)
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"Reward {name}: its levels are {declared!r}; a list of numbers is expected."
        ) from error


def _checked_options(
    name: str, function: Function, signature: Signature, given: Mapping[str, object]
) -> dict[str, object]:
    """The options, known to the function's signature and of the types that it states."""
    known = [*signature.required, *signature.optional]
    for option in given:
        if option in known:
            continue
        if any(option in names for names in SUPPLIED.values()):
            raise ConfigError(f"reward.options.{name}.{option}: is supplied by Muster. Remove it.")
        raise ConfigError(
            f"reward.options.{name}.{option}: the reward has no such parameter; it has: "
            f"{', '.join(known) or 'none'}.{did_you_mean(option, known)}"
        )
    hints = _type_hints(function)
    return {option: _typed(name, option, value, hints.get(option)) for option, value in given.items()}


def _type_hints(function: Function) -> dict[str, Any]:
    """Types by parameter; empty where they can't be told."""
    target = getattr(function, "func", function)
    target = target if hasattr(target, "__name__") else getattr(type(target), "__call__", target)  # noqa: B004
    try:
        return get_type_hints(target, include_extras=True)
    except (TypeError, NameError, AttributeError):
        return {}


def _typed(name: str, option: str, value: object, hint: Any) -> object:
    """The value, refused where its parameter's type says so."""
    if hint is None:
        return value
    try:
        # A list from the file may stand for a tuple or a set; a text never for a number.
        is_strict = not isinstance(value, list | tuple)
        return TypeAdapter(hint).validate_python(value, strict=is_strict)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(f"reward.options.{name}.{option} is {value!r}: {reason}.") from error
    except PydanticUserError:
        # A type that pydantic can't check is the function's own affair.
        return value
