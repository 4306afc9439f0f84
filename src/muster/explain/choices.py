"""What each choice of a recipe does under a configuration, in words and numbers of its own functions."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from muster.algo.advantages import ADVANTAGES
from muster.algo.gates import EVERY_TOKEN
from muster.algo.kl import KLS, no_kl
from muster.algo.objectives import OBJECTIVES
from muster.algo.ratios import CORRECTIONS
from muster.algo.recipes import Recipe
from muster.algo.weights import WEIGHTS
from muster.config import Config
from muster.explain.variants import described, ends_of, loss_and_slope
from muster.runstate import Plan


class Choice(NamedTuple):
    """A row of the table."""

    axis: str
    function: str
    does: str


def about_choices(config: Config, recipe: Recipe, plan: Plan) -> Iterator[Choice]:
    """Each choice: its axis, the function with its options, and what it does here."""
    advantage = described(recipe.advantage, ADVANTAGES)
    yield Choice("advantage", advantage, _said(recipe.advantage))
    yield Choice("objective", described(recipe.objective, OBJECTIVES), _about_objective(recipe, plan))
    yield Choice("correction", described(recipe.correction, CORRECTIONS), _about_correction(recipe, plan))
    yield Choice("gate", _gate_name(config, recipe), _about_gate(recipe))
    yield Choice("kl", described(recipe.kl, KLS) if config.algo.kl_coef else "off", _about_kl(config, recipe))
    yield Choice("weights", described(recipe.weights, WEIGHTS), _said(recipe.weights))
    if config.algo.entropy_coef:
        coefficient = f"{config.algo.entropy_coef:g}"
        yield Choice(
            "entropy", coefficient, f"the loss of a token is its entropy times {coefficient} smaller"
        )
    yield Choice("truncated", config.algo.truncated or recipe.truncated, _about_truncated(config, recipe))
    if plan.resample:
        yield Choice(
            "resample",
            f"{plan.resample} rounds",
            "groups whose scores are all equal are replaced by groups of other prompts",
        )


def _said(function: Callable[..., object]) -> str:
    """The first line of what the function says of itself."""
    bare = function.func if isinstance(function, partial) else function
    return (inspect.getdoc(bare) or "a function of your own").partition("\n")[0]


def _about_objective(recipe: Recipe, plan: Plan) -> str:
    one = torch.ones(1, dtype=torch.float64)
    push = {sign: -float(loss_and_slope(recipe.objective, one, sign)[1]) for sign in (1.0, -1.0)}
    at_one = f"at ratio 1 the push is {push[1.0]:g} times a good advantage, {-push[-1.0]:g} times a bad one"
    if plan.minibatches * plan.passes == 1 and plan.sync_every == 1:
        return (
            f"{at_one}; with one update a step on fresh samples every ratio is 1, so nothing is ever clipped"
        )
    ends = {sign: ends_of(recipe.objective, sign) for sign in (1.0, -1.0)}
    good = f"above {ends[1.0].high:g}" if ends[1.0].high is not None else "nowhere"
    sides = [
        f"{side} {end:g}" for side, end in zip(("below", "above"), ends[-1.0], strict=True) if end is not None
    ]
    bad = " and ".join(sides) or "nowhere"
    begins = "the first update of a step has ratio 1, later ones don't" if plan.sync_every == 1 else (
        f"the policy that samples is up to {plan.sync_every - 1} steps old, so ratios leave 1"
    )  # fmt: skip
    return f"{at_one}; {begins}; the push ends {good} for a good token, {bad} for a bad one"


def _about_correction(recipe: Recipe, plan: Plan) -> str:
    lag = " It is not about a policy that lags: that is in the ratio." if plan.sync_every > 1 else ""
    return (
        f"{_said(recipe.correction)} With the local engine, sampler and learner are the same weights, and "
        f"it is 1 to rounding.{lag}"
    )


def _gate_name(config: Config, recipe: Recipe) -> str:
    if config.algo.gate is not None:
        options = ", ".join(f"{name} {value}" for name, value in config.algo.gate.params.items())
        return f"{config.algo.gate.use} ({options})" if options else config.algo.gate.use
    return "none" if recipe.gate is EVERY_TOKEN else "the recipe's"


def _about_gate(recipe: Recipe) -> str:
    if recipe.gate is EVERY_TOKEN:
        return "every token takes part"
    finds = ", by a threshold found in a pass of its own" if recipe.gate.threshold is not None else ""
    return f"leaves tokens out of the policy term{finds}; what the others weigh stays the same"


def _about_kl(config: Config, recipe: Recipe) -> str:
    coefficient = config.algo.kl_coef
    if not coefficient:
        return "kl_coef is 0: no reference, no pass for it; nothing holds the policy back"
    if recipe.kl is no_kl:
        return (
            f"kl_coef is {coefficient:g}, yet this choice is always 0: a reference pass for the metrics alone"
        )
    if config.algo.kl_in == "reward":
        return f"{coefficient:g} times its sum over a completion is taken from the reward: {_said(recipe.kl)}"
    return f"{coefficient:g} times it is added to the loss of every token, weighed alike: {_said(recipe.kl)}"


def _about_truncated(config: Config, recipe: Recipe) -> str:
    limit = config.sampling.max_tokens
    zone = config.algo.overlong_zone or max(1, limit // 5)
    return {
        "score": "a completion that reached its limit is scored as any",
        "mask": "a completion that reached its limit is out of the loss and of its divisors",
        "penalize": f"from {limit - zone} tokens on the reward falls, by 1 at the limit of {limit}",
    }[config.algo.truncated or recipe.truncated]
