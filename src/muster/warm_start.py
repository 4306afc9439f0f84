"""From a configuration to the objects of a warm start; what is wrong with the data is found first."""

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from muster import pretrained, ways
from muster.assemble import Say, chosen_optimizer, make_budget, make_draw, make_plan, make_rate
from muster.clock import Clock, Progress
from muster.config import Config
from muster.data import Answered, EncodedAnswer, encode_answers
from muster.devices import settling
from muster.engine_setup import measures_products
from muster.inputs import load_held_out_answers, load_training_answers, steps_of
from muster.optimizer import Rehearsed, make_optimizer, rehearse
from muster.policy import Policy
from muster.selfcheck import NUM_TOKENS, check_given
from muster.sft import OBJECTIVE, SFT, HeldOutAnswers, WarmStart, batch_of
from muster.staging import end_ids


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a configuration names, loaded as far as no model is needed."""

    config: Config
    tokenizer: PreTrainedTokenizerBase
    items: tuple[EncodedAnswer, ...]
    held_out: tuple[EncodedAnswer, ...]
    num_steps: int
    optimizer: Rehearsed

    @property
    def probes(self) -> list[tuple[int, ...]]:
        """Token ids on which an export is compared with what it was made from."""
        return [item.ids for item in self.items]

    @property
    def isolations(self) -> Mapping[str, str]:
        """Nothing that was written by a model is run."""
        return {}

    def close(self) -> None:
        """Nothing is held."""


def prepare(config: Config, say: Say) -> Answers:
    """Reads and encodes the answers; raises before any model is loaded."""
    optimizer = rehearse(chosen_optimizer(config), config.optim.lr)
    rows, held_out = load_training_answers(config), load_held_out_answers(config)
    tokenizer = pretrained.load_tokenizer(config.model.path, say)
    stop_ids = pretrained.stop_ids_of(config.model.path, tokenizer)

    def encoded(rows: list[Answered], source: str) -> tuple[EncodedAnswer, ...]:
        found = encode_answers(
            rows,
            tokenizer,
            stop_ids=stop_ids,
            max_tokens=config.model.max_tokens,
            source=source,
            chat_template_kwargs=config.data.chat_template_kwargs,
            overlong=config.data.overlong,
        )
        if found.num_dropped:
            say(f"{source}: left out {found.num_dropped} rows of more than {config.model.max_tokens} tokens")
        return found.answers

    items = encoded(rows, config.data.path)
    kept = held_out[: config.eval.prompts]
    eval_items = encoded(kept, config.data.eval_path or config.data.path) if kept else ()
    num_steps = steps_of(config, len(items))
    learned = sum(sum(item.mask) for item in items)
    say(
        f"{len(items):,} answers of {learned:,} tokens to learn, {len(eval_items):,} held out, "
        f"{num_steps:,} steps"
    )
    return Answers(
        config=config,
        tokenizer=tokenizer,
        items=items,
        held_out=eval_items,
        num_steps=num_steps,
        optimizer=optimizer,
    )


def assemble(answers: Answers, policy: Policy, progress: Progress) -> WarmStart:
    """The warm start at its start: step 0, a fresh optimizer."""
    config = answers.config
    ways.choose(policy, may_measure=measures_products(config))
    plan = make_plan(config, SFT, answers.num_steps)
    held_out = HeldOutAnswers(items=answers.held_out, every=config.eval.every, at_start=config.eval.at_start)
    return WarmStart(
        policy=policy,
        optimizer=make_optimizer(policy, answers.optimizer.chosen, lr=config.optim.lr),
        items=answers.items,
        draw=make_draw(config, [item.sample.id for item in answers.items]),
        plan=plan,
        rate=make_rate(config, plan),
        budget=make_budget(config, policy, answers.optimizer),
        end_ids=end_ids(policy),
        held_out=held_out if answers.held_out else None,
        clock=Clock(progress, settling(policy.device)),
    )


def self_checked(run: WarmStart, tolerance: float) -> dict[str, float | None]:
    """The numbers of the start-up self-check on the shortest and the longest row, by name.

    Raises ModelError where one is too large.
    """
    ends = (min(run.items, key=_length), max(run.items, key=_length))
    batch = batch_of([_start_of(item) for item in ends])
    return check_given(run.policy, batch, temperature=OBJECTIVE.temperature, tolerance=tolerance).numbers()


def _length(item: EncodedAnswer) -> int:
    return item.num_tokens


def _start_of(item: EncodedAnswer) -> EncodedAnswer:
    """The row up to its first few learned tokens."""
    return item._replace(answer_ids=item.answer_ids[:NUM_TOKENS], mask=item.mask[:NUM_TOKENS])
