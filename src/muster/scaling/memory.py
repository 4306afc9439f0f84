"""Bytes on one device: what stays, and the larger of what sampling and an update take beside it."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.scaling.facts import Model, Work
from muster.scaling.layouts import Layout
from muster.scaling.rates import Rates

SHARE = 0.5
"""Of the memory that is free at start, for activations: the rest is for caches and others."""
LARGEST_BUDGET = 16_384
"""Tokens; beyond this a larger micro-batch is no faster."""
SMALLEST_BUDGET = 256
LOGITS_BYTES = 3 * 64 * 2**20
"""In an update: a chunk of float32 logits, their gradient, and one more while they are made."""
DRAW_COPIES = 4
"""Of the float32 logits of all rows while a token is drawn."""


def tokens_within(free_bytes: float, reserved_bytes: float, token_bytes: int) -> int:
    """Packed tokens whose activations fit into their share of the memory that is left.

    `reserved_bytes`: what gradients and optimizer state will take once they exist.
    """
    left = max(free_bytes - reserved_bytes, 0) * SHARE
    return max(SMALLEST_BUDGET, min(LARGEST_BUDGET, int(left / token_bytes)))


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on a device that trains, and on one that samples for it."""

    weights: int
    optimizer: int
    copies: int
    """Of the trained weights: a reference, weights that lag."""
    gradients: int
    activations: int
    """Of one forward pass in training, until its backward pass."""
    casts: int
    """Of the weights in the precision of the computation, while a pass lasts."""
    logits: int
    """In an update."""
    gathered: int
    """Of divided weights, in a pass: those beside the layers, and two layers'."""
    whole: int
    """Of divided weights, while sampling: all of them."""
    cache: int
    """Keys and values of the rollouts that are sampled side by side, and the logits of their next token."""
    server: int | None
    """All that a server holds; None where there is none."""
    budget_tokens: int
    """Of one forward pass in training."""
    resident: int = field(init=False)
    """What is there all the time."""
    peak: int = field(init=False)

    def __post_init__(self) -> None:
        """Adds up: gradients are gone while sampling, keys and values in an update."""
        resident = self.weights + self.optimizer + self.copies
        update = self.gradients + self.activations + self.casts + self.logits + self.gathered
        object.__setattr__(self, "resident", resident)
        object.__setattr__(self, "peak", resident + max(update, self.whole + self.cache))


def memory_of(model: Model, work: Work, rates: Rates, layout: Layout) -> Memory:
    """What a device holds; ranks that divide the weights hold as many rows each, or fewer."""
    is_divided = work.divides and layout.ranks > 1
    shares = layout.ranks if is_divided else 1
    weights, gradients = -(-model.weight_bytes // shares), -(-4 * model.trained_params // shares)
    state, copies = -(-model.state_bytes // shares), gradients * work.copies
    budget = work.budget_tokens or tokens_within(
        rates.memory - weights, gradients + state + copies, model.activation_bytes
    )
    layer_params = (model.num_params - model.rest_params) // model.num_layers
    prompts = math.ceil(work.prompts / layout.ranks)
    rows = min(work.max_rows, prompts * work.group_size)
    return Memory(
        weights=weights,
        optimizer=state,
        copies=copies,
        gradients=gradients,
        activations=min(budget, _most_tokens(model, work, layout)) * model.activation_bytes,
        casts=2 * (model.layer_params + model.head_params) if model.itemsize == 2 else 0,
        logits=LOGITS_BYTES,
        gathered=4 * (model.rest_params + 2 * layer_params) if is_divided else 0,
        whole=model.weight_bytes if is_divided else 0,
        cache=0 if layout.servers else _cache(model, work, prompts, rows, model.cache_bytes),
        server=_on_server(model, work, rates, layout) if layout.servers else None,
        budget_tokens=budget,
    )


class Share(NamedTuple):
    """What a rank computes of an update."""

    prompts: int
    """One each, or one a rollout where they aren't shared."""
    rollouts: int


def largest_share(model: Model, work: Work, layout: Layout) -> Share:
    """That of the slowest rank, which is waited for."""
    rollouts = math.ceil(work.rollouts / layout.ranks)
    return Share(math.ceil(work.prompts / layout.ranks) if model.shares_prompts else rollouts, rollouts)


def _most_tokens(model: Model, work: Work, layout: Layout) -> int:
    """Of a rank's share of an update, every completion at its limit."""
    share = largest_share(model, work, layout)
    return share.prompts * work.longest_prompt + share.rollouts * work.max_tokens


def _cache(model: Model, work: Work, prompts: int, rows: int, token_bytes: int) -> int:
    """Each prompt once, or once a row where they aren't shared; every row to its limit."""
    held = min(prompts, math.ceil(rows / work.group_size)) if model.shares_prompts else rows
    tokens = held * work.longest_prompt + rows * work.max_tokens
    return tokens * token_bytes + 4 * DRAW_COPIES * rows * model.num_vocab


def _on_server(model: Model, work: Work, rates: Rates, layout: Layout) -> int:
    """Weights in the precision of the computation, keys and values of its rows, prompts shared."""
    rows = min(int(rates.server_rows), math.ceil(work.rollouts / layout.servers))
    prompts = math.ceil(work.prompts / layout.servers)
    weights = model.itemsize * (model.num_params + model.adapter_params)
    return weights + _cache(model, work, prompts, rows, model.itemsize * model.cache_numbers)
