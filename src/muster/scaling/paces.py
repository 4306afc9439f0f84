"""Seconds of the units of a step's work on one device, from floating-point operations and bytes.

Two operations a multiplied weight and token; a backward pass takes twice a forward one, of which a frozen
weight needs half, the gradient of what went in. Attention is counted by pairs of positions.
"""

from dataclasses import dataclass
from typing import NamedTuple

from muster.scaling.facts import Model, Work
from muster.scaling.rates import Rates


@dataclass(frozen=True, kw_only=True)
class Paces:
    """Seconds on one device."""

    pass_s: float
    """Of one more token for all rows, however few they are: the weights pass through memory."""
    token_s: float
    """Of each token that is sampled, and of each of a prompt, beside that."""
    train_s: float
    """Of each token of an update, all passes over it together."""
    optimizer_s: float
    """Of a step's optimizer steps."""
    reward_s: float
    """Of a completion's score."""


class Tokens(NamedTuple):
    """Of one step, on all ranks."""

    sampled: float
    read: float
    """Of prompts, each once, before sampling."""
    trained: float
    """Of prompts in training: once, or once for every completion where they aren't shared."""

    @property
    def in_sampling(self) -> float:
        """Prompts and completions."""
        return self.sampled + self.read

    @property
    def in_training(self) -> float:
        """Prompts and completions."""
        return self.sampled + self.trained


def tokens_of(model: Model, work: Work, rates: Rates) -> Tokens:
    """The step's tokens, at the mean lengths."""
    read = work.prompts * work.prompt_tokens
    return Tokens(
        sampled=work.rollouts * rates.completion,
        read=read,
        trained=read if model.shares_prompts else read * work.group_size,
    )


class Flops(NamedTuple):
    """Floating-point operations of one forward pass over a step's tokens."""

    layers: float
    head: float
    adapter: float
    attention: float

    @property
    def forward(self) -> float:
        """All of it."""
        return sum(self)


def forward_flops(model: Model, work: Work, rates: Rates, prompt_tokens: float) -> Flops:
    """Of a step's completions, and so many tokens of prompts in front of them."""
    sampled = work.rollouts * rates.completion
    tokens = sampled + prompt_tokens
    pairs = sampled * (work.prompt_tokens + rates.completion / 2) + prompt_tokens * work.prompt_tokens / 2
    return Flops(
        layers=2.0 * model.layer_params * tokens,
        head=2.0 * model.head_params * sampled,
        adapter=2.0 * model.adapter_params * tokens,
        attention=model.pair_flops * pairs,
    )


def update_flops(model: Model, work: Work, rates: Rates) -> float:
    """Of all passes over a step's rollouts in training."""
    once = forward_flops(model, work, rates, tokens_of(model, work, rates).trained)
    frozen = 1.0 if model.adapter_params else 2.0
    backward = frozen * (once.layers + once.head) + 2.0 * (once.adapter + once.attention)
    again = once.forward - once.head if work.recomputes else 0.0
    return work.passes * (once.forward + backward + again) + work.scored * once.forward


def assumed_paces(model: Model, work: Work, rates: Rates) -> Paces:
    """From the peaks of a device and the shares of them that are reached."""
    tokens = tokens_of(model, work, rates)
    bandwidth = rates.bandwidth * rates.bandwidth_use
    sampling = forward_flops(model, work, rates, tokens.read).forward / (rates.flops * rates.sample_use)
    # A row's token reads its own keys and values; its prompt's are read once for the group.
    seen = rates.completion / 2 + work.prompt_tokens / (work.group_size if model.shares_prompts else 1)
    cached = tokens.sampled * seen * model.cache_bytes / bandwidth
    training = update_flops(model, work, rates) / (rates.flops * rates.train_use)
    # Gradient twice, for its norm and its use; weights and state are read and written.
    moved = 16.0 * model.trained_params + 2.0 * model.state_bytes
    return Paces(
        pass_s=model.read_bytes / bandwidth,
        token_s=(sampling + cached) / tokens.in_sampling,
        train_s=training / tokens.in_training,
        optimizer_s=work.updates * moved / bandwidth,
        reward_s=rates.reward,
    )
