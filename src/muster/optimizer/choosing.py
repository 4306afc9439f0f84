"""Which optimizer a name means, with which options, and over which parameters.

`adamw` is AdamW (arXiv:1711.05101); the 8-bit ones keep its two moments in blocks of 8-bit numbers
(arXiv:2110.02861).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.optim import Optimizer

from muster.callables import load_object
from muster.errors import ConfigError
from muster.nearest import did_you_mean
from muster.policy import Policy
from muster.quantized import require_bitsandbytes
from muster.signatures import annotation_of, describe, fits, parameters_of

NAMED: Mapping[str, str] = {
    "adamw": "torch.optim:AdamW",
    "adamw_8bit": "bitsandbytes.optim:AdamW8bit",
    "paged_adamw_8bit": "bitsandbytes.optim:PagedAdamW8bit",
    "sgd": "torch.optim:SGD",
}
FORMS = f"{', '.join(NAMED)}, a class such as `torch.optim.Adafactor`, or `file.py:Class`"

_NOT_OPTIONS: Mapping[str, str] = {
    "params": "they are what model.lora, or its absence, says is trained",
    "lr": "set optim.lr, which the schedule moves",
    "weight_decay": "set optim.weight_decay, which spares biases and norms",
    "maximize": "a recipe's loss is minimised",
}
"""Parameters of optimizers that are set elsewhere, and where."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """An optimizer, as far as it can be known without a model."""

    name: str
    """As configured."""
    make: Callable[..., object]
    """Of groups of parameters, `lr` and options."""
    options: Mapping[str, object]
    weight_decay: float
    takes_decay: bool
    """It has a weight decay, which may differ between groups."""

    def over(self, params: Iterable[nn.Parameter], lr: float) -> Optimizer:
        """The optimizer over the parameters, matrices first; biases and norms, being vectors, don't decay."""
        order = list(params)
        matrices = [param for param in order if param.ndim > 1]
        vectors = [param for param in order if param.ndim <= 1]
        decays = {"weight_decay": self.weight_decay} if self.takes_decay else {}
        spared = {"weight_decay": 0.0} if self.takes_decay else {}
        groups = [{"params": matrices, **decays}, {"params": vectors, **spared}]
        options = dict(self.options)
        if self.name == "adamw" and order[0].device.type == "cpu":
            # One pass over memory for each parameter instead of ten. By device alone, so that a resumed
            # run computes the same bits.
            options.setdefault("fused", True)
        make = self.make
        if self.name == "paged_adamw_8bit" and order[0].device.type == "cpu":
            # There is nothing to page to: the same numbers, without a warning for every tensor.
            make = cast("Callable[..., object]", load_object(NAMED["adamw_8bit"]))
        made = make([group for group in groups if group["params"]], lr=lr, **options)
        if not isinstance(made, Optimizer):
            raise ConfigError(
                f"optim.name {self.name!r} makes a {type(made).__name__}, which is no torch.optim.Optimizer."
            )
        return made


def choose(name: str, options: Mapping[str, object], weight_decay: float) -> Chosen:
    """The optimizer of that name; raises ConfigError where there is none, or an option isn't its own."""
    make = _find(name)
    parameters = parameters_of(make)
    if "lr" not in parameters:
        raise ConfigError(f"optim.name {name!r} takes no lr, which the schedule moves. Allowed: {FORMS}.")
    takes_decay = "weight_decay" in parameters
    if weight_decay and not takes_decay:
        raise ConfigError(
            f"optim.weight_decay is {weight_decay:g}, but {name!r} has no weight decay. Set it to 0."
        )
    return Chosen(
        name=name,
        make=make,
        options={option: _checked(name, option, value, parameters) for option, value in options.items()},
        weight_decay=weight_decay,
        takes_decay=takes_decay,
    )


def _find(name: str) -> Callable[..., object]:
    """The class, or a user's function that makes one."""
    if name.endswith("_8bit") and name in NAMED:
        require_bitsandbytes(f"optim.name {name!r}")
    if name not in NAMED and not {".", ":"} & set(name):
        raise ConfigError(f"optim.name is {name!r}.{did_you_mean(name, NAMED)} Allowed: {FORMS}.")
    spec = NAMED.get(name, name)
    if ":" not in spec:
        module, _, leaf = spec.rpartition(".")
        spec = f"{module}:{leaf}"
    try:
        found = load_object(spec)
    except ConfigError as error:
        raise ConfigError(f"optim.name: {error} Allowed: {FORMS}.") from error
    if not callable(found):
        raise ConfigError(f"optim.name {name!r} is {type(found).__name__}, no class. Allowed: {FORMS}.")
    return found


def _checked(name: str, option: str, value: object, parameters: Mapping[str, inspect.Parameter]) -> object:
    """The value as the signature types it; an option it doesn't have, or that doesn't fit, is refused."""
    place = f"optim.options.{option}"
    if option in _NOT_OPTIONS:
        raise ConfigError(f"{place} is no option: {_NOT_OPTIONS[option]}.")
    known = {key: found for key, found in parameters.items() if key not in _NOT_OPTIONS}
    if option not in known:
        if any(found.kind is inspect.Parameter.VAR_KEYWORD for found in known.values()):
            return value
        hint = did_you_mean(option, known) or f" There are: {', '.join(known)}."
        raise ConfigError(f"{place} is {value!r}, but {name!r} has no such option.{hint}")
    annotation = annotation_of(known[option])
    if not fits(annotation, value, negative=True):
        raise ConfigError(f"{place} is {value!r}, but must be {describe(annotation, negative=True)}.")
    return tuple(value) if isinstance(value, list) else value


def optimizer_order(policy: Policy) -> list[str]:
    """Names of the trainable parameters in the order in which the optimizer holds them."""
    matrices = [name for name, param in policy.trainable() if param.ndim > 1]
    return matrices + [name for name, param in policy.trainable() if param.ndim <= 1]


def make_optimizer(policy: Policy, chosen: Chosen, *, lr: float) -> Optimizer:
    """The optimizer over the trainable parameters."""
    params: dict[str, Tensor] = dict(policy.trainable())
    return chosen.over([cast(nn.Parameter, params[name]) for name in optimizer_order(policy)], lr)
