"""The first steps of a run without learning: groups as it would sample them, and an update at rate 0."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from muster.learn import Lessons, add_reference
from muster.loop import sync, whole_batch
from muster.memory import held_bytes, peak_bytes
from muster.optimizer import state_bytes
from muster.records import Group, StreamKey
from muster.runstate import Run, State


class Wave(NamedTuple):
    """Some groups sampled and scored at once."""

    num_rollouts: int
    longest: int
    """Tokens of the longest completion: so many passes the sampler made."""
    tokens: int
    """Of all completions, and of each prompt once."""
    sample_s: float
    score_s: float


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The groups of the run's first steps."""

    groups: tuple[Group, ...]
    waves: tuple[Wave, ...]
    peak_bytes: int | None
    """The most that the process held meanwhile, or close to it; None where the system doesn't say."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """An update at rate 0."""

    tokens: int
    """Of the completions that it took in, and of each of their prompts once."""
    seconds: dict[str, float]
    """By phase."""
    peak_bytes: int | None
    """The most that the process held until the update's end."""
    held_bytes: int | None
    """What it holds afterwards, the optimizer's state included."""
    optimizer_bytes: int
    """Of the optimizer's state."""


def sample_groups(
    run: Run, num_groups: int, *, num_wide: int, limit_s: float | None, say: Callable[[str], None]
) -> Sampled:
    """Groups that the run's first steps would draw, with the weights as they are.

    First as many prompts as a step has, then `num_wide` at once. Where these take longer than the limit,
    there are fewer.
    """
    per_step = run.plan.prompts_per_step
    total = min(num_groups, len(run.items))
    indices = _first_draws(run, total)
    groups: list[Group] = []
    waves: list[Wave] = []
    device = run.policy.device
    before = peak_bytes(device)
    began = time.perf_counter()
    while len(groups) < total:
        size = min(per_step if len(waves) < 2 else num_wide, total - len(groups))
        if waves:
            elapsed = time.perf_counter() - began
            pace = elapsed / len(groups)
            fitting = total if limit_s is None else min(total, int(limit_s / pace))
            if len(waves) == 1:
                say(f"sampling {fitting} groups, which takes about {pace * fitting:.0f} s")
            size = min(size, fitting - len(groups))
            if size < 1:
                say(f"{len(groups)} of {total} groups sampled: more would take longer than {limit_s:.0f} s")
                break
        collected, wave = _wave(run, indices, len(groups), size)
        groups += collected
        waves.append(wave)
    after = peak_bytes(device)
    # Loading a model may have taken more than sampling does.
    peak = held_bytes(device) if after == before else after
    return Sampled(groups=tuple(groups), waves=tuple(waves), peak_bytes=peak)


def _first_draws(run: Run, count: int) -> list[int]:
    """The items of the run's first steps, as it would draw them with nothing learned yet."""
    indices: list[int] = []
    while len(indices) < count:
        indices += run.draw(State(drawn=len(indices)), run.plan.prompts_per_step, [])
    return indices[:count]


def _wave(run: Run, indices: Sequence[int], start: int, size: int) -> tuple[list[Group], Wave]:
    per_step = run.plan.prompts_per_step
    places = range(start, start + size)
    keys = [StreamKey(run.plan.seed, 1 + place // per_step, place % per_step, 0) for place in places]
    items = [run.items[indices[place]] for place in places]
    run.clock.take()
    groups = run.collector.collect(items, keys, run.sampling, run.clock)
    seconds = run.clock.take()
    lengths = [len(rollout.completion.ids) for group in groups for rollout in group.rollouts]
    wave = Wave(
        num_rollouts=len(lengths),
        longest=max(lengths),
        tokens=sum(lengths) + sum(len(item.ids) for item in items),
        sample_s=seconds["sample"],
        score_s=seconds["score"],
    )
    return groups, wave


def rehearse_update(run: Run, groups: Sequence[Group]) -> Update | None:
    """A step's update on these groups at a learning rate of 0; None where no rollout counts.

    The weights are what they were, to the bit: AdamW subtracts 0 times a finite step, and takes no weight
    decay. It is done twice, since the first time the optimizer's state is still being made. Groups
    without signal take part as well: that is what the largest update costs.
    """
    run.rate = lambda _: 0.0
    seconds: dict[str, float] = {}
    tokens = 0
    for number in range(2):
        if number == 0 or run.plan.sync_every == 1:
            # Else the second one is a step whose sampler lags behind: most are.
            run.state = State()
            sync(run, 0)
        run.clock.take()
        tokens = _learn(run, groups)
        seconds = run.clock.take()
        if not tokens:
            return None
    device = run.policy.device
    return Update(
        tokens=tokens,
        seconds=seconds,
        peak_bytes=peak_bytes(device),
        held_bytes=held_bytes(device),
        optimizer_bytes=state_bytes(run.optimizer),
    )


def _learn(run: Run, groups: Sequence[Group]) -> int:
    """Teaches the groups as if each had a signal; the tokens that took part."""
    batch = whole_batch(groups)
    if run.plan.kl_in_reward:
        batch = add_reference(run, batch)
    verdict = run.judge(groups)
    signs = torch.ones_like(verdict.advantages)
    signs[:, ::2] = -1.0
    counts = verdict.counts if verdict.counts.any() else torch.ones_like(verdict.counts)
    lessons = Lessons(
        run,
        groups,
        batch,
        replace(verdict, advantages=signs, counts=counts, signal=torch.ones_like(verdict.signal)),
    )
    if not lessons.rows:
        return 0
    lessons.learn(1)
    taught = lessons.batch
    prompts = {group: len(taught.prompts[group]) for group in taught.group.tolist()}
    return int(taught.lengths.sum()) + sum(prompts.values())
