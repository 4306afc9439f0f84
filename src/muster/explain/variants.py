"""The objectives of the recipes and their options, in words, and where their gradients end.

Axes: B ratios, one token each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from muster.algo.build import options
from muster.algo.metrics import is_clipped
from muster.algo.objectives import OBJECTIVES, Objective, clip
from muster.algo.recipes import RECIPES
from muster.algo.tokens import Tokens
from muster.errors import ConfigError
from muster.nearest import did_you_mean

OLD_LOGPROB = -1.6094379124341003
"""Of the token that is drawn: log 0.2, so that at a ratio of 5 it is certain."""
DUAL_CAP = 3.0
"""Bound of the ratio for the dual clip, as its paper has it (arXiv:1912.09729)."""
_LOWEST, _HIGHEST = 0.01, 10.0
"""Ratios between which the end of a gradient is looked for."""
_NEAR = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
"""Distances from 1 that are looked at: clip ranges differ by a factor of a thousand."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An objective as one or more recipes use it."""

    name: str
    """With the values of its options: `clip 0.2/0.28`."""
    objective: Objective
    recipes: tuple[str, ...]
    """Empty for one that is an option of `clip` and no recipe's own."""


class Ends(NamedTuple):
    """Ratios between which an objective has a gradient; None where it goes on."""

    low: float | None
    high: float | None


def named(function: Callable[..., object], names: Mapping[str, Callable[..., object]]) -> str:
    """The function's name among these, or its own."""
    bare = function.func if isinstance(function, partial) else function
    known = next((name for name, candidate in names.items() if candidate is bare), None)
    return known or getattr(bare, "__name__", type(bare).__name__)


def described(function: Callable[..., object], names: Mapping[str, Callable[..., object]]) -> str:
    """The function's name with its options: `clip (low 0.2, high 0.28)`."""
    given = [f"{option} {_short(value)}" for option, value in options(function).items() if value is not None]
    name = named(function, names)
    return f"{name} ({', '.join(given)})" if given else name


def _label(objective: Objective) -> str:
    """The name with the bare values of the options: `clip 0.2/0.28`."""
    given = [_short(value) for value in options(objective).values() if value is not None]
    return " ".join([named(objective, OBJECTIVES), "/".join(given)]).strip()


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def variants(recipes: Sequence[str] = ()) -> list[Variant]:
    """The objectives of these recipes, of all without any, and the dual clip; equal ones once."""
    for recipe in recipes:
        refuse_unknown(recipe)
    found: dict[str, list[str]] = {}
    objectives: dict[str, Objective] = {}
    for recipe in recipes or RECIPES:
        objective = RECIPES[recipe].objective
        name = _label(objective)
        objectives.setdefault(name, objective)
        found.setdefault(name, []).append(recipe)
    if not recipes:
        dual = partial(clip, cap=DUAL_CAP)
        objectives[_label(dual)] = dual
    return [
        Variant(name=name, objective=objective, recipes=tuple(found.get(name, ())))
        for name, objective in objectives.items()
    ]


def refuse_unknown(recipe: str) -> None:
    """ConfigError for a name that no recipe has, with the nearest."""
    if recipe not in RECIPES:
        near = did_you_mean(recipe, RECIPES) or f" There are: {', '.join(RECIPES)}."
        raise ConfigError(f"--recipe is {recipe!r}, but no recipe has that name.{near}")


def tokens_at(ratios: Float[Tensor, " B"], advantage: float, old_logprob: float = OLD_LOGPROB) -> Tokens:
    """Completions of one token each, whose policy is so many times the old policy."""
    old = torch.full_like(ratios, old_logprob)[:, None]
    return Tokens(
        logprobs=(old + ratios.log()[:, None]).requires_grad_(),
        old_logprobs=old,
        sampler_logprobs=old,
        ref_logprobs=None,
        entropy=torch.zeros_like(old),
        advantages=torch.full_like(ratios, advantage),
        mask=torch.ones_like(old, dtype=torch.bool),
    )


def loss_and_slope(
    objective: Objective, ratios: Float[Tensor, " B"], advantage: float
) -> tuple[Tensor, Tensor]:
    """The loss at each ratio, and its derivative by the token's logprob."""
    tokens = tokens_at(ratios, advantage)
    loss = objective(tokens)
    (slope,) = torch.autograd.grad(loss.sum(), tokens.logprobs)
    return loss.detach()[:, 0], slope[:, 0]


def reads_ratio_alone(objective: Objective) -> bool:
    """The loss is the same whatever the probability that the ratio starts from."""
    ratios = torch.tensor([0.5, 2.0], dtype=torch.float64)
    first, second = (objective(tokens_at(ratios, 1.0, old)) for old in (OLD_LOGPROB, 2 * OLD_LOGPROB))
    return torch.allclose(first, second)


def ends_of(objective: Objective, advantage: float) -> Ends:
    """Where the gradient ends on either side of ratio 1, asked of the objective itself."""
    below = [1.0 - distance for distance in _NEAR] + [0.5, 0.2, 0.1, _LOWEST]
    above = [1.0 + distance for distance in _NEAR] + [2.0, 5.0, _HIGHEST]
    return Ends(_end(objective, advantage, below), _end(objective, advantage, above))


def _end(objective: Objective, advantage: float, ratios: Sequence[float]) -> float | None:
    """The first ratio, going away from 1, at which there is no gradient left."""
    stopped = _stopped(objective, advantage, ratios).tolist()
    if not any(stopped):
        return None
    place = stopped.index(True)
    inside, outside = ([1.0, *ratios])[place], ratios[place]
    for _ in range(50):
        middle = (inside + outside) / 2
        if bool(_stopped(objective, advantage, [middle])):
            outside = middle
        else:
            inside = middle
    return round(outside, 9)


def _stopped(objective: Objective, advantage: float, ratios: Sequence[float]) -> Bool[Tensor, " B"]:
    tokens = tokens_at(torch.tensor(ratios, dtype=torch.float64), advantage)
    return is_clipped(tokens, objective)[:, 0]
