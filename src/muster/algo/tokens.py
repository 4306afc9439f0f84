"""The record that every per-token choice of a recipe reads, and the totals of an update.

Axes: B rows (one completion each), T completion positions.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Per-token quantities of some rollouts; what is at positions where `mask` is False is noise."""

    logprobs: Float[Tensor, "B T"]
    """Of the sampled tokens under the policy now, with gradient."""
    old_logprobs: Float[Tensor, "B T"]
    """What the clip is measured against."""
    sampler_logprobs: Float[Tensor, "B T"]
    """What the engine said when it sampled."""
    ref_logprobs: Float[Tensor, "B T"] | None
    """Under the frozen reference; None where no KL term is on."""
    entropy: Float[Tensor, "B T"]
    """Of the policy's next-token distribution, in nats, with gradient."""
    advantages: Float[Tensor, " B"]
    mask: Bool[Tensor, "B T"]
    """True where a token is the policy's own and counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Counted over a whole update, across micro-batches and ranks, before the first backward."""

    tokens: int
    """Tokens that count."""
    sequences: int
    """Completions that take part, those of groups without signal included."""
    limit: int
    """The completion limit, in tokens."""


def silence(tokens: Tokens) -> Tokens:
    """The same tokens with 0 where the mask is False, in values and in gradients.

    Masking the loss alone isn't enough: backward multiplies the 0 that arrives at a masked
    position by the derivative there, and 0 times an infinite derivative is NaN.
    """

    def quiet(values: Tensor) -> Tensor:
        return torch.where(tokens.mask, values, 0.0)

    return replace(
        tokens,
        logprobs=quiet(tokens.logprobs),
        old_logprobs=quiet(tokens.old_logprobs),
        sampler_logprobs=quiet(tokens.sampler_logprobs),
        ref_logprobs=None if tokens.ref_logprobs is None else quiet(tokens.ref_logprobs),
        entropy=quiet(tokens.entropy),
    )
