"""What one step of a configuration does, in numbers, before anything is sampled.

Axes: B completions of an update, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from muster import data, pretrained
from muster.algo.recipes import Recipe
from muster.algo.tokens import Totals
from muster.assemble import Say, build_recipe, encode, make_draw, make_plan, make_rate
from muster.batch import Batch, Row, collate, pack, pad
from muster.config import Config
from muster.explain.choices import about_choices
from muster.explain.weights import mask_of
from muster.inputs import load_training
from muster.pictures import Block, Chart, Curve, Picture, Table
from muster.records import Completion
from muster.runstate import Plan, State

_CURVE_POINTS = 400


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

    def weights(self, lengths: Sequence[int]) -> Float[Tensor, "B T"]:
        """What the tokens of an update count, by the recipe's own function."""
        totals = Totals(tokens=sum(lengths), sequences=len(lengths), limit=self.limit)
        return self.recipe.weights(mask_of(lengths), totals).double()


def explain_step(config: Config, say: Say) -> Picture:
    """The picture of a step; reads data and tokenizer, loads no model."""
    facts = step_facts(config, say)
    most = "" if facts.is_exact else "up to "
    lengths = spread_lengths(facts)
    weights = facts.weights(lengths)
    return Picture(
        name="step",
        title="One step of this configuration",
        blocks=(
            _in_a_sentence(config, facts),
            _passes_table(facts),
            f"A pass over all {facts.num_completions} completions of the first step has {most}"
            f"{facts.packed_tokens:,} positions with each prompt once for its group, against "
            f"{facts.plain_tokens:,} with the prompt before each completion. How a pass is cut to fit "
            "run.budget_tokens changes nothing but its speed.",
            _left_out(config),
            _updates_table(facts),
            _weights_table(facts, lengths, weights),
            *_rates(config, facts),
            Table(
                title="what the choices of the recipe do here",
                columns=("choice", "is", "does"),
                rows=tuple(about_choices(config, facts.recipe, facts.plan)),
            ),
        ),
        numbers={
            "prompts": facts.plan.prompts_per_step,
            "completions": facts.num_completions,
            "updates": facts.num_updates,
            "completions_per_update": list(facts.update_sizes),
            "tokens_per_update": list(facts.update_tokens),
            "tokens_are_exact": facts.is_exact,
            "weights_sum": [float(facts.weights([facts.limit] * size).sum()) for size in facts.update_sizes],
            "passes": {one.phase: one.count for one in facts.passes},
            "steps": facts.plan.num_steps,
            "learning_rates": list(facts.rates),
            "prompt_tokens": list(facts.prompt_tokens),
            "packed_tokens": facts.packed_tokens,
            "plain_tokens": facts.plain_tokens,
        },
    )


def step_facts(config: Config, say: Say) -> StepFacts:
    """The numbers of a step, from the objects that the run itself is made of."""
    recipe = build_recipe(config)
    samples = load_training(config)
    items = encode(config, pretrained.load_tokenizer(config.model.path, say), samples, say)
    per_step, sampling = config.sampling.prompts_per_step, config.sampling
    num_steps = config.run.steps or data.num_steps(len(items), per_step, config.run.epochs or 1)
    plan = make_plan(config, recipe, num_steps)
    prompts = [items[place].ids for place in make_draw(config, items)(State(), per_step, [])]
    batch = _full_batch(prompts, sampling.group_size, sampling.max_tokens)
    rate = make_rate(config, plan)
    num_updates = plan.minibatches * plan.passes
    return StepFacts(
        plan=plan,
        recipe=recipe,
        group_size=sampling.group_size,
        limit=sampling.max_tokens,
        is_exact=sampling.ignore_eos,
        prompt_tokens=tuple(map(len, prompts)),
        update_sizes=tuple(map(len, np.array_split(range(len(batch)), plan.minibatches))),
        passes=tuple(_passes(config, plan, recipe)),
        rates=tuple(rate(update) for update in range(num_steps * num_updates)),
        packed_tokens=pack(batch).ids.numel(),
        plain_tokens=pad(batch).ids.numel(),
    )


def spread_lengths(facts: StepFacts) -> list[int]:
    """Lengths of an update's completions: the limit, or spread evenly up to it where they may end."""
    size = facts.update_sizes[0]
    if facts.is_exact:
        return [facts.limit] * size
    return [max(1, round(facts.limit * (place + 1) / size)) for place in range(size)]


def _full_batch(prompts: Sequence[tuple[int, ...]], group_size: int, limit: int) -> Batch:
    """The step's completions at their limit; only how many tokens there are is of interest."""
    full = Completion(ids=(0,) * limit, sampler_logprobs=(0.0,) * limit, finish_reason="length", version=0)
    return collate(
        prompts, [Row(group, full, 0.0) for group in range(len(prompts)) for _ in range(group_size)]
    )


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


def _in_a_sentence(config: Config, facts: StepFacts) -> str:
    plan = facts.plan
    length = f"of {facts.limit}" if facts.is_exact else f"of up to {facts.limit}"
    return (
        f"A step draws {plan.prompts_per_step} prompts and samples {facts.group_size} completions {length} "
        f"tokens of each: {facts.num_completions} completions. {', '.join(config.reward.use)} scores them, "
        f"recipe {config.algo.recipe} turns the scores of each group into advantages, and {plan.passes} "
        f"pass{'es' if plan.passes > 1 else ''} over {plan.minibatches} "
        f"minibatch{'es' if plan.minibatches > 1 else ''} make {facts.num_updates} "
        f"update{'s' if facts.num_updates > 1 else ''}. The run has {plan.num_steps:,} steps, so "
        f"{len(facts.rates):,} updates."
    )


def _left_out(config: Config) -> str:
    """What may make a pass smaller than the table says."""
    teaches = config.algo.entropy_coef or (config.algo.kl_coef and config.algo.kl_in == "loss")
    silent = (
        "Groups whose rewards are all equal go through it for the KL term or the entropy bonus alone"
        if teaches
        else "Groups whose rewards are all equal are not sent through the update"
    )
    return (
        f"{silent}; their tokens count in the divisors either way. A completion that could not be scored "
        "leaves both."
    )


def _passes_table(facts: StepFacts) -> Table:
    tokens = "their tokens" if facts.is_exact else "their tokens, at most"
    return Table(
        title="forward passes of a step",
        columns=("phase", "passes", "completions each", tokens, "what for"),
        rows=tuple((one.phase, one.count, one.completions, one.tokens, one.about) for one in facts.passes),
    )


def _updates_table(facts: StepFacts) -> Table:
    most = "" if facts.is_exact else ", at most"
    rows = []
    for number in range(facts.num_updates):
        size = facts.update_sizes[number % facts.plan.minibatches]
        total = float(facts.weights([facts.limit] * size).sum())
        tokens = facts.update_tokens[number % facts.plan.minibatches]
        rows.append(
            (number + 1, number // facts.plan.minibatches + 1, size, tokens, total, facts.rates[number])
        )
    shown = rows if len(rows) <= 12 else [*rows[:6], ("...", *[None] * 5), *rows[-5:]]
    return Table(
        title="updates of the first step",
        columns=(
            "update",
            "pass",
            "completions",
            f"tokens that count{most}",
            f"all weights together{most}",
            "learning rate",
        ),
        rows=tuple(shown),
    )


def _weights_table(facts: StepFacts, lengths: Sequence[int], weights: Tensor) -> Table:
    """What tokens weigh in an update of completions of different lengths."""
    shown = (0, len(lengths) // 2, len(lengths) - 1)
    places = {lengths[place]: place for place in shown}.values()
    whole = float(weights.sum())
    assumed = "" if facts.is_exact else f", lengths spread evenly up to {facts.limit}"
    return Table(
        title=f"what a token weighs in an update of {len(lengths)} completions{assumed}",
        columns=("completion of ... tokens", "one token", "the completion", "its share of the update"),
        rows=tuple(
            (
                lengths[place],
                float(weights[place, 0]),
                float(weights[place].sum()),
                float(weights[place].sum()) / whole,
            )
            for place in places
        ),
    )


def _rates(config: Config, facts: StepFacts) -> tuple[Block, Block]:
    rates, per_step = facts.rates, facts.num_updates
    top = max(rates)
    first = rates.index(top)
    stride = max(1, len(rates) // _CURVE_POINTS)
    places = [*range(0, len(rates), stride)]
    if places[-1] != len(rates) - 1:
        places.append(len(rates) - 1)
    warm = (
        f"rises to {top:.3g} at update {first + 1} (step {first // per_step + 1})"
        if first
        else "is at its top"
    )
    return (
        f"The learning rate starts at {rates[0]:.3g}, {warm}, and ends at {rates[-1]:.3g} "
        f"({config.optim.schedule}). AdamW's first updates move each weight by about the learning rate, "
        f"whatever the size of its gradient; a gradient with a norm above {facts.plan.max_grad_norm:g} is "
        "scaled down to that before.",
        Chart(
            title="learning rate over the updates of the run",
            x_label="update",
            y_label="learning rate",
            curves=(
                Curve(
                    name=config.optim.schedule,
                    x=tuple(float(place + 1) for place in places),
                    y=tuple(rates[place] for place in places),
                ),
            ),
        ),
    )
