"""The numbers of a step, from the objects that the run itself is made of.

Axes: B completions of an update, T positions.
"""

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from muster import pretrained
from muster.algo.recipes import Recipe
from muster.algo.tokens import Totals
from muster.assemble import Say, build_recipe, encode, make_draw, make_plan, make_rate, start_stage
from muster.config import Config
from muster.explain.weights import mask_of
from muster.inputs import load_training, steps_of
from muster.runstate import Plan, State


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Forward passes of one kind in a step; what is larger than the budget is cut into several."""

    phase: str
    """As the run's timings call it."""
    count: int
    completions: int
    """In each."""
    tokens: int
    """Of completions, in each; at most, where completions may end by themselves."""
    about: str


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """One step of a configuration."""

    plan: Plan
    recipe: Recipe
    group_size: int
    limit: int
    """Of a completion, in tokens."""
    is_exact: bool
    """Every completion has that many tokens, since its end is ignored; else it is the most."""
    prompt_tokens: tuple[int, ...]
    """Of the prompts that the first step draws."""
    update_sizes: tuple[int, ...]
    """Completions of each update of a pass."""
    passes: tuple[Passes, ...]
    rates: tuple[float, ...]
    """The learning rate of every update of the run."""
    packed_tokens: int
    """Positions of a pass over the step's completions, each prompt once for its group."""
    plain_tokens: int
    """The same with padded rows."""

    @property
    def num_completions(self) -> int:
        """Of a step, without resampling."""
        return self.plan.prompts_per_step * self.group_size

    @property
    def num_updates(self) -> int:
        """Of a step."""
        return self.plan.minibatches * self.plan.passes

    @property
    def update_tokens(self) -> tuple[int, ...]:
        """Tokens that count in each update of a pass."""
        return tuple(size * self.limit for size in self.update_sizes)

    @property
    def weight_sums(self) -> tuple[float, ...]:
        """All weights of each update of a pass together, its completions at their limit."""
        sums = {size: float(self.weights([self.limit] * size).sum()) for size in set(self.update_sizes)}
        return tuple(sums[size] for size in self.update_sizes)

    def weights(self, lengths: Sequence[int]) -> Float[Tensor, "B T"]:
        """What the tokens of an update count, by the recipe's own function."""
        totals = Totals(tokens=sum(lengths), sequences=len(lengths), limit=self.limit)
        return self.recipe.weights(mask_of(lengths), totals).double()


def step_facts(config: Config, say: Say) -> StepFacts:
    """The numbers of a step, from the objects that the run itself is made of."""
    recipe = build_recipe(config)
    samples = load_training(config)
    stage = start_stage(config, say)
    with nullcontext() if stage is None else closing(stage):
        items = encode(config, pretrained.load_tokenizer(config.model.path, say), samples, say, stage)
    per_step, sampling = config.sampling.prompts_per_step, config.sampling
    plan = make_plan(config, recipe, steps_of(config, len(items)))
    prompts = [
        items[place].ids
        for place in make_draw(config, [item.sample.id for item in items])(State(), per_step, [])
    ]
    num_prompt, num_completions = sum(map(len, prompts)), per_step * sampling.group_size
    rate = make_rate(config, plan)
    num_updates = plan.minibatches * plan.passes
    return StepFacts(
        plan=plan,
        recipe=recipe,
        group_size=sampling.group_size,
        limit=sampling.max_tokens,
        is_exact=sampling.ignore_eos,
        prompt_tokens=tuple(map(len, prompts)),
        update_sizes=tuple(map(len, np.array_split(range(num_completions), plan.minibatches))),
        passes=tuple(_passes(config, plan, recipe)),
        rates=tuple(rate(update) for update in range(plan.num_steps * num_updates)),
        # A completion's last token predicts nothing, so it is not packed.
        packed_tokens=num_prompt + num_completions * (sampling.max_tokens - 1),
        plain_tokens=num_completions * (max(map(len, prompts)) + sampling.max_tokens),
    )


def spread_lengths(facts: StepFacts) -> list[int]:
    """Lengths of an update's completions: the limit, or spread evenly up to it where they may end."""
    size = facts.update_sizes[0]
    if facts.is_exact:
        return [facts.limit] * size
    return [max(1, round(facts.limit * (place + 1) / size)) for place in range(size)]


def _passes(config: Config, plan: Plan, recipe: Recipe) -> list[Passes]:
    """Which passes over the model a step makes, in its order."""
    whole = plan.prompts_per_step * config.sampling.group_size
    limit, updates = config.sampling.max_tokens, plan.minibatches * plan.passes
    part = -(-whole // plan.minibatches)

    def over(phase: str, count: int, completions: int, about: str) -> Passes:
        return Passes(
            phase=phase, count=count, completions=completions, tokens=completions * limit, about=about
        )

    again = f"; {plan.resample} more at most, for groups without signal" if plan.resample else ""
    found = [over("sample", 1, whole, f"a token at a time{again}")]
    if config.algo.kl_coef:
        found.append(over("reference", 1, whole, "without gradient: where the policy was at the start"))
    if updates > 1 or plan.sync_every > 1:
        lag = "" if updates > 1 else ", on steps where the sampler lags behind"
        found.append(over("old", 1, whole, f"without gradient: what the ratio is measured against{lag}"))
    if recipe.gate.threshold is not None:
        found.append(over("gate", updates, part, "without gradient: the gate's threshold, for each update"))
    found.append(over("forward", updates, part, "with gradient; the backward pass follows"))
    return found
