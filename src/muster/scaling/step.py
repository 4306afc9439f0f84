"""A step on a layout, part by part, in seconds and in bytes; and where more devices stop helping.

Ranks sample the prompts and train the rollouts of their share; the slowest has the largest share, and is
waited for. Nothing overlaps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from muster.scaling.facts import Model, Work
from muster.scaling.layouts import Layout
from muster.scaling.memory import largest_share, memory_of
from muster.scaling.paces import Paces
from muster.scaling.rates import Rates

JSON_BYTES = 26
"""Of a sampled token with its logprob, as ranks send it to each other."""
SCORE_BYTES = 9
"""Of a token's logprob, entropy and whether it is the likeliest, summed over ranks."""
WORTH = 1.2
"""Twice the devices have to be so many times as fast, or scaling has stopped."""
MOST = 4096
"""Devices at which nobody looks further."""
FIXED = 0.75
"""A part that keeps more than this of its seconds on twice the devices is one that they don't shorten."""

Phase = Literal["sample", "update", "network"]


class Part(NamedTuple):
    """One part of a step, on the slowest rank."""

    name: str
    phase: Phase
    seconds: float
    sent: float = 0.0
    """Bytes that a rank sends, or a server; 0 where nothing moves."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step on a layout."""

    layout: Layout
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return math.fsum(part.seconds for part in self.parts)

    def of(self, phase: Phase) -> float:
        """Seconds of a phase."""
        return math.fsum(part.seconds for part in self.parts if part.phase == phase)

    @property
    def longest(self) -> Part:
        """The part that takes most of it."""
        return max(self.parts, key=lambda part: part.seconds)


def step_of(model: Model, work: Work, rates: Rates, paces: Paces, layout: Layout) -> Step:
    """A step with the given paces of a device, whether assumed or measured."""
    parts = [
        *_sampling(work, rates, paces, layout),
        *_update(model, work, rates, paces, layout),
        *(_between_ranks(model, work, rates, layout) if layout.ranks > 1 else ()),
        *(_with_servers(model, work, rates, layout) if layout.servers else ()),
    ]
    return Step(layout=layout, parts=tuple(parts))


def _sampling(work: Work, rates: Rates, paces: Paces, layout: Layout) -> list[Part]:
    prompts = math.ceil(work.prompts / layout.ranks)
    scored = prompts * work.group_size
    if layout.servers:
        # A group is cut where there are more servers than prompts.
        prompts = math.ceil(work.prompts / layout.servers)
        rollouts, rows = math.ceil(work.rollouts / layout.servers), rates.server_rows
    else:
        rollouts, rows = scored, work.max_rows
    tokens = prompts * work.prompt_tokens + rollouts * rates.completion
    return [
        Part("weights read", "sample", paces.pass_s * rates.longest * math.ceil(rollouts / rows)),
        Part("tokens sampled", "sample", paces.token_s * tokens),
        Part("rewards", "sample", paces.reward_s * scored),
    ]


def _trained_tokens(model: Model, work: Work, rates: Rates, layout: Layout) -> float:
    """Of the largest share of an update: a rank computes the prompts of what it has."""
    share = largest_share(model, work, layout)
    return share.prompts * work.prompt_tokens + share.rollouts * rates.completion


def _update(model: Model, work: Work, rates: Rates, paces: Paces, layout: Layout) -> list[Part]:
    tokens = _trained_tokens(model, work, rates, layout)
    return [
        Part("forward and backward", "update", paces.train_s * tokens),
        Part("optimizer", "update", paces.optimizer_s / (layout.ranks if work.divides else 1)),
    ]


def _between_ranks(model: Model, work: Work, rates: Rates, layout: Layout) -> list[Part]:
    """Sums go round in a ring: a rank sends all but a rank's part of them twice. Rollouts go to everyone."""
    ranks, others = layout.ranks, (layout.ranks - 1) / layout.ranks
    scores = (work.passes + work.scored) * 2 * others * SCORE_BYTES * work.rollouts * rates.longest
    rollouts = (ranks - 1) * JSON_BYTES * work.rollouts * rates.completion / ranks
    # The ring leaves a node once, what each rank is sent by itself as often as the node has ranks.
    ring = rates.link if layout.nodes == 1 else min(rates.link, rates.network)
    alone = rates.link if layout.nodes == 1 else rates.network / layout.devices
    if work.divides:
        weights = _divided(model, work, rates, layout, ring)
    else:
        gradients = work.updates * 2 * others * 4.0 * model.trained_params
        waits = rates.latency * work.updates * model.trained_tensors
        weights = [Part("gradients", "network", gradients / ring + waits, gradients)]
    return [
        *weights,
        Part("logprobs", "network", scores / ring, scores),
        Part("rollouts", "network", rollouts / alone, rollouts),
    ]


def _divided(model: Model, work: Work, rates: Rates, layout: Layout, ring: float) -> list[Part]:
    """Whole weights to sample; a layer's in every pass and again backwards; gradients per micro-batch."""
    tokens = _trained_tokens(model, work, rates, layout)
    budget = memory_of(model, work, rates, layout).budget_tokens
    cuts = max(work.updates // work.passes, math.ceil(tokens / budget))
    once = 4.0 * model.num_params * (layout.ranks - 1) / layout.ranks
    backward = once * (1 - model.rest_params / model.num_params)
    gathered = once * (1 + cuts * (work.scored + work.passes)) + cuts * work.passes * backward
    waits = rates.latency * (model.num_layers + 1) * cuts
    gathers = waits * (work.scored + 2 * work.passes)
    gradients = cuts * work.passes * once
    return [
        Part("weights gathered", "network", gathered / ring + gathers, gathered),
        Part("gradients", "network", gradients / ring + waits * work.passes, gradients),
    ]


def _with_servers(model: Model, work: Work, rates: Rates, layout: Layout) -> list[Part]:
    """Weights are written once and read by every server; completions come back as JSON."""
    written = 4.0 * model.trained_params
    answers = rates.server_bytes * work.rollouts * rates.completion / layout.servers
    return [
        Part("weights to servers", "network", (1 + layout.servers) * written / rates.share, written),
        Part("completions of servers", "network", answers / rates.network, answers),
    ]


class Limit(NamedTuple):
    """Where more devices stop helping."""

    devices: int
    seconds: float
    """Of a step on twice the devices."""
    gain: float
    """How many times as fast twice the devices would be."""
    part: Part
    """The part that holds them up, as it is on twice the devices."""


def curve(
    model: Model, work: Work, rates: Rates, paces: Paces, *, per_node: int, most: int = MOST
) -> list[Step]:
    """Steps on 1, 2, 4 ... devices, at most so many a node, until scaling has stopped and once beyond."""
    steps: list[Step] = []
    count = nodes = 1
    while count <= most:
        while count > nodes * per_node:
            nodes *= 2
        steps.append(step_of(model, work, rates, paces, Layout(nodes, count // nodes)))
        if _has_stopped(steps):
            break
        count *= 2
    return steps


def _has_stopped(steps: Sequence[Step]) -> bool:
    return len(steps) > 1 and steps[-2].seconds < WORTH * steps[-1].seconds


def limit_of(steps: Sequence[Step]) -> Limit | None:
    """Where the curve ends, and the first bound that it met; None where it went on to its end."""
    if not _has_stopped(steps):
        return None
    fewer, more = steps[-2:]
    before = {part.name: part.seconds for part in fewer.parts}
    fixed = [part for part in more.parts if part.seconds > FIXED * before.get(part.name, 0.0)]
    return Limit(
        fewer.layout.total,
        more.seconds,
        fewer.seconds / more.seconds,
        max(fixed or more.parts, key=lambda part: part.seconds),
    )
