"""A run's prompts as token ids, and the stage and scene of its environment where it has one."""

from collections.abc import Callable, Sequence

from muster import pretrained
from muster.clock import Clock
from muster.config import Config
from muster.data import Tokenizer, encode_prompts
from muster.engine_setup import make_engine
from muster.envs import Glue, Stage, StagePool
from muster.envs.opening import openings_of, shown, telling
from muster.episodes import Scene
from muster.gather import Collector, Item
from muster.policy import Policy
from muster.records import Message, Sample
from muster.rewards import Grader

Say = Callable[[str], None]


def start_stage(config: Config, say: Say) -> StagePool | None:
    """The processes that the configuration's environment lives in, for the caller to close; None without one.

    Raises ConfigError where the environment can't be used.
    """
    if config.data.environment is None:
        return None
    stage = StagePool(
        config.data.environment, workers=config.reward.workers, time_limit_s=config.reward.time_limit_s
    )
    say(stage.describe())
    return stage


def encode(
    config: Config,
    tokenizer: Tokenizer,
    samples: Sequence[Sample],
    say: Say,
    stage: Stage | None = None,
) -> tuple[Item, ...]:
    """The samples as token ids, as their environments open them; over-long ones are refused, or counted."""
    options = config.data.chat_template_kwargs
    openings: list[tuple[Message, ...]] = [()] * len(samples)
    asked = list(samples)
    if stage is not None:
        openings = openings_of(samples, stage)
        told = telling(stage.described.tools, tokenizer, options)
        asked = [shown(sample, opening, told) for sample, opening in zip(samples, openings, strict=True)]
        options = told.options
    encoded = encode_prompts(
        asked,
        tokenizer,
        chat_template_kwargs=options,
        max_prompt_tokens=config.max_prompt_tokens,
        overlong=config.data.overlong,
    )
    if encoded.dropped:
        say(f"left out {len(encoded.dropped)} prompts of more than {config.max_prompt_tokens} tokens")
    place = {sample.id: number for number, sample in enumerate(samples)}
    return tuple(
        Item(samples[place[p.sample.id]], p.ids, p.text, openings[place[p.sample.id]])
        for p in encoded.prompts
    )


def make_scene(
    config: Config, tokenizer: Tokenizer, items: Sequence[Item], stage: Stage | None
) -> Scene | None:
    """What rollouts of several turns are played on; None without an environment.

    Raises ConfigError where the chat template can't be used for several turns.
    """
    if stage is None:
        return None
    told = telling(stage.described.tools, tokenizer, config.data.chat_template_kwargs)
    glue = Glue(tokenizer, told.options, items[0].opening)
    glue.check("tool" if stage.described.tools else "user")
    return Scene(stage=stage, glue=glue, max_tokens=config.model.max_tokens)


def make_collector(
    config: Config, policy: Policy, grader: Grader, num_steps: int, clock: Clock, scene: Scene | None = None
) -> Collector:
    """What turns prompts into graded groups, with the engine that the configuration names."""
    return Collector(
        engine=make_engine(config, policy, lambda done, total: clock.progress("sample", done, total)),
        grader=grader,
        tokenizer=policy.tokenizer,
        num_steps=num_steps,
        end_ids=end_ids(policy),
        scene=scene,
    )


def end_ids(policy: Policy) -> frozenset[int]:
    """What is cut from the end of the text that rewards and people see: stop and padding ids."""
    pad_id = policy.tokenizer.pad_token_id
    stops = pretrained.stop_ids(policy.base, policy.tokenizer)
    return stops | {pad_id} if isinstance(pad_id, int) else stops
