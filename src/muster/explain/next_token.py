"""One real step on one group: how the probability of the next token, and of whole completions, moves.

Axes: G rollouts of the group, V vocabulary.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from muster import pretrained
from muster.algo.kl import exact
from muster.algo.ratios import sequence_sum
from muster.assemble import (
    Materials,
    Say,
    assemble,
    build_recipe,
    chosen_optimizer,
    encode,
    load_policy,
    make_draw,
    start_grader,
)
from muster.clock import unwatched
from muster.config import Config
from muster.errors import ConfigError
from muster.explain.model import next_logits, token_text
from muster.gather import Item
from muster.inputs import load_training
from muster.loop import sync, take_step, whole_batch
from muster.optimizer import rehearse
from muster.pictures import Bars, Picture, Table
from muster.policy import Policy
from muster.records import Group, Sample, StepReport
from muster.rewards import check_columns
from muster.runstate import Run, State
from muster.update import score_in_parts

NUM_TOP = 10
MAX_SHOWN = 16
"""Rollouts of the table."""
_TEXT_LIMIT = 40


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What a step changed."""

    policy: Policy
    report: StepReport
    before: Float[Tensor, " V"]
    """Logprobs of the next token after the prompt, in float64."""
    after: Float[Tensor, " V"]
    rollouts_before: Float[Tensor, " G"]
    """Logprob of each completion, the sum over its tokens."""
    rollouts_after: Float[Tensor, " G"]

    @property
    def group(self) -> Group:
        """The step's only group."""
        return self.report.groups[0]

    @property
    def advantages(self) -> list[float]:
        """Of the group's rollouts."""
        return [trace.advantage for trace in self.report.traces[0]]


def explain_next_token(
    config: Config, *, prompt: str | None = None, answer: str = "", num_top: int = NUM_TOP, say: Say
) -> Picture:
    """The picture of one step of this configuration on one group, at its full learning rate.

    Without a prompt, the first that the run would draw. `answer` is what the rewards get as the column of
    that name, with a prompt.
    """
    if not 1 <= num_top <= 50:
        raise ConfigError(f"--top is {num_top}; allowed: 1 to 50 tokens.")
    moved = take_one_step(config, prompt, answer, say)
    change = _change(moved)
    return Picture(
        name="next-token",
        title="One step on one group, and how probability moves",
        blocks=(
            *_what_was_done(config, moved),
            Bars(
                title="next token after the prompt, before and after the step",
                value_label="probability",
                labels=tuple(token_text(moved.policy, token) for token in _shown_tokens(moved, num_top)),
                series={
                    name: tuple(logprobs[_shown_tokens(moved, num_top)].exp().tolist())
                    for name, logprobs in (("before", moved.before), ("after", moved.after))
                },
            ),
            _tokens_table(moved, num_top),
            f"{change['moved']:.3g} of the probability changed places (half of the sum of all changes); "
            f"KL(after || before) is {change['kl']:.3g} nats, the entropy went from "
            f"{change['entropy_before']:.3g} to {change['entropy_after']:.3g}. The step pulls up a token "
            "that begins better completions than the group's mean, and pushes down one that begins worse "
            "ones. All tokens share the same weights: what is like them, sampled or not, is carried along.",
            _rollouts_table(moved),
            _agreement(moved),
        ),
        numbers={
            **change,
            "advantages": moved.advantages,
            "logprob_before": moved.rollouts_before.tolist(),
            "logprob_after": moved.rollouts_after.tolist(),
            "learning_rate": moved.report.metrics.get("learning_rate"),
            "grad_norm": moved.report.metrics.get("grad_norm"),
        },
    )  # fmt: skip


def take_one_step(config: Config, prompt: str | None, answer: str, say: Say) -> Moved:
    """The first step of a run on one prompt, by the run's own loop, with the policy before and after it."""
    if config.data.environment is not None:
        raise ConfigError(
            f"data.environment is {config.data.environment!r}: this shows one answer to one prompt, not "
            "several turns. Name a configuration without it."
        )
    config = _of_one_group(config)
    with closing(start_grader(config, say)) as grader:
        tokenizer = pretrained.load_tokenizer(config.model.path, say)
        if prompt is None:
            samples = load_training(config)
            check_columns(grader.rewards, samples[0].columns, config.data.path)
            items = encode(config, tokenizer, samples, say)
            [first] = make_draw(config, [item.sample.id for item in items])(State(), 1, [])
            item = items[first]
        else:
            sample = _sample(config, prompt, answer)
            check_columns(grader.rewards, sample.columns, "--prompt and --answer")
            [item] = encode(config, tokenizer, [sample], say)
        materials = Materials(
            config=config,
            recipe=build_recipe(config),
            grader=grader,
            tokenizer=tokenizer,
            items=(item,),
            eval_items=(),
            num_too_long=0,
            num_steps=1,
            optimizer=rehearse(chosen_optimizer(config), config.optim.lr),
        )
        policy = load_policy(config.model, tokenizer, seed=config.run.seed, say=say)
        return _moved(assemble(materials, policy, unwatched), item)


def _of_one_group(config: Config) -> Config:
    """The configuration with one prompt a step, and the learning rate at its top from the first update."""
    return config.model_copy(
        update={
            "sampling": config.sampling.model_copy(update={"prompts_per_step": 1}),
            "optim": config.optim.model_copy(update={"schedule": "constant", "warmup": 0}),
            "algo": config.algo.model_copy(update={"resample": 0}),
        }
    )


def _sample(config: Config, prompt: str, answer: str) -> Sample:
    columns = {"answer": answer} if answer else {}
    if config.data.raw:
        return Sample(id="0", text=prompt, columns=columns)
    system = config.data.system
    first = () if system is None else ({"role": "system", "content": system},)
    return Sample(id="0", messages=(*first, {"role": "user", "content": prompt}), columns=columns)


def _moved(run: Run, item: Item) -> Moved:
    policy = run.policy
    start = policy.snapshot()

    def next_logprobs() -> Tensor:
        logits = next_logits(policy, item.ids)[-1]
        return (logits / run.sampling.temperature).log_softmax(-1)

    def rollout_logprobs() -> Tensor:
        scores = score_in_parts(policy, batch, run.sampling.temperature, run.budget)
        return sequence_sum(scores.logprobs.double(), batch.mask)[:, 0]

    sync(run, 0)
    report = take_step(run)
    batch = whole_batch(report.groups)
    after, rollouts_after = next_logprobs(), rollout_logprobs()
    with policy.using(start):
        before, rollouts_before = next_logprobs(), rollout_logprobs()
    return Moved(
        policy=policy,
        report=report,
        before=before,
        after=after,
        rollouts_before=rollouts_before,
        rollouts_after=rollouts_after,
    )


def _what_was_done(config: Config, moved: Moved) -> tuple[str, ...]:
    sampling, metrics = config.sampling, moved.report.metrics
    updates = config.algo.minibatches * config.algo.passes
    trained = "a LoRA adapter" if config.model.lora or config.model.adapter else "all weights"
    return (
        f"Model {config.model.path}, {trained} trained. After the prompt {moved.group.prompt_text!r} a group "
        f"of {len(moved.group.rollouts)} completions of up to {sampling.max_tokens} tokens was sampled at "
        f"temperature {sampling.temperature:g}, scored by {', '.join(config.reward.use)}, and learnt from as "
        f"recipe {config.algo.recipe} does: {updates} update{'s' if updates > 1 else ''} at a learning rate "
        f"of {config.optim.lr:g}. Mean reward {_short(metrics.get('reward'))}, gradient norm "
        f"{_short(metrics.get('grad_norm'))}.",
        *moved.report.warnings,
    )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _change(moved: Moved) -> dict[str, float]:
    before, after = moved.before.exp(), moved.after.exp()
    return {
        "moved": float((after - before).abs().sum() / 2),
        "kl": float(exact(moved.after, moved.before)),
        "entropy_before": float(-(before * moved.before).nansum()),
        "entropy_after": float(-(after * moved.after).nansum()),
    }


def _shown_tokens(moved: Moved, num_top: int) -> list[int]:
    """Those that were likeliest, before or after, and those that the group began with; by probability."""
    first = {rollout.completion.ids[0] for rollout in moved.group.rollouts if rollout.completion.ids}
    top = min(num_top, len(moved.before))
    likely = {*moved.before.topk(top).indices.tolist(), *moved.after.topk(top).indices.tolist()}
    by_size = sorted(first | likely, key=lambda token: -float(moved.before[token]))
    return by_size[: 2 * num_top]


def _tokens_table(moved: Moved, num_top: int) -> Table:
    rows = []
    for token in _shown_tokens(moved, num_top):
        begun = [
            advantage
            for advantage, rollout in zip(moved.advantages, moved.group.rollouts, strict=True)
            if rollout.completion.ids[:1] == (token,)
        ]
        before, after = float(moved.before[token].exp()), float(moved.after[token].exp())
        mean = sum(begun) / len(begun) if begun else None
        rows.append((token_text(moved.policy, token), len(begun), mean, before, after, after - before))
    return Table(
        title="the same in numbers",
        columns=("token", "rollouts begin so", "their mean advantage", "before", "after", "change"),
        rows=tuple(rows),
    )


def _rollouts_table(moved: Moved) -> Table:
    """Each rollout's advantage, and what became of its log-probability."""
    order = sorted(range(len(moved.advantages)), key=lambda place: -moved.advantages[place])
    shown = order if len(order) <= MAX_SHOWN else [*order[: MAX_SHOWN // 2], *order[-MAX_SHOWN // 2 :]]
    rows = []
    for place in shown:
        rollout, before, after = (
            moved.group.rollouts[place],
            float(moved.rollouts_before[place]),
            float(moved.rollouts_after[place]),
        )
        rows.append(
            (
                _cut(rollout.text),
                rollout.score.value,
                moved.advantages[place],
                before,
                after,
                after - before,
            )
        )
    left_out = f", the best and worst {MAX_SHOWN} of {len(order)}" if len(order) > MAX_SHOWN else ""
    return Table(
        title=f"log-probability of the completions{left_out}",
        columns=("completion", "reward", "advantage", "before", "after", "change"),
        rows=tuple(rows),
    )


def _cut(text: str) -> str:
    return repr(text if len(text) <= _TEXT_LIMIT else f"{text[: _TEXT_LIMIT - 3]}...")


def _agreement(moved: Moved) -> str:
    changes = (moved.rollouts_after - moved.rollouts_before).tolist()

    def told(sign: float, verb: str, side: str) -> str:
        chosen: Sequence[float] = [
            change
            for change, advantage in zip(changes, moved.advantages, strict=True)
            if sign * advantage > 0
        ]
        agreeing = sum(sign * change > 0 for change in chosen)
        return f"{agreeing} of {len(chosen)} completions with an advantage {side} 0 {verb}"

    return (
        f"{told(1.0, 'became likelier', 'above')}; {told(-1.0, 'became less likely', 'below')}. They share "
        "tokens and weights, so one can be carried along by the others."
    )
