"""What one step of a configuration does, in numbers, before anything is sampled.

Axes: B completions of an update, T positions.
"""

from collections.abc import Sequence

from torch import Tensor

from muster.assemble import Say
from muster.config import Config
from muster.explain.choices import about_choices
from muster.explain.facts import StepFacts, spread_lengths, step_facts
from muster.pictures import Block, Chart, Curve, Picture, Table

_CURVE_POINTS = 400


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
            "weights_sum": list(facts.weight_sums),
            "passes": {one.phase: one.count for one in facts.passes},
            "steps": facts.plan.num_steps,
            "learning_rates": list(facts.rates),
            "prompt_tokens": list(facts.prompt_tokens),
            "packed_tokens": facts.packed_tokens,
            "plain_tokens": facts.plain_tokens,
        },
    )


def _first_moves(config: Config) -> str:
    if "adamw" not in config.optim.name:
        return ""
    return "AdamW's first updates move each weight by about that, whatever the size of its gradient. "


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
        turn, place = divmod(number, facts.plan.minibatches)
        counts = (facts.update_sizes[place], facts.update_tokens[place], facts.weight_sums[place])
        rows.append((number + 1, turn + 1, *counts, facts.rates[number]))
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
        f"({config.optim.schedule}). {_first_moves(config)}A gradient with a norm above "
        f"{facts.plan.max_grad_norm:g} is scaled down to that before.",
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
