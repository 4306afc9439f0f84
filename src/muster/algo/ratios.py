"""Log-ratios per token and per sequence, and the correction for a sampler that isn't the learner.

Axes: B rows (one completion each), T completion positions.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from muster.algo.tokens import Tokens

LOG_RATIO_BOUND = 20.0
"""No log-ratio beyond this enters `exp`: 4.85e8 is as good as infinite, and stays finite."""

Correction = Callable[[Tokens], Float[Tensor, "B T"]]
Level = Literal["token", "sequence", "sequence_mean"]
"""Which log-ratio a correction reads: a token's own, or for all tokens of a completion its sum
(the true ratio of the sequence, which drifts from 1 with length) or its mean (which doesn't)."""


def exp_bounded(log_ratio: Float[Tensor, "B #T"]) -> Float[Tensor, "B #T"]:
    """The exponential of the log-ratio, clamped before and so always finite."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def is_clamped(log_ratio: Float[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Where `exp_bounded` doesn't see the true log-ratio."""
    return log_ratio.abs() > LOG_RATIO_BOUND


def token_log_ratio(tokens: Tokens) -> Float[Tensor, "B T"]:
    """Log of policy over old policy, raw, for each token."""
    return tokens.logprobs - tokens.old_logprobs


def sequence_sum(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B 1"]:
    """Sum over the tokens of each completion that count."""
    return torch.where(mask, values, 0.0).sum(dim=1, keepdim=True)


def sequence_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B 1"]:
    """Mean over the tokens of each completion that count; 0 where none does."""
    return sequence_sum(values, mask) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def sampler_ratio(tokens: Tokens, *, level: Level = "token") -> Float[Tensor, "B T"]:
    """Learner at the start of the step over sampler: how much likelier a token was to the learner.

    Detached. Sampler and learner disagree in the last bits even on the same weights.
    """
    log_ratio = (tokens.old_logprobs - tokens.sampler_logprobs).detach()
    return exp_bounded(_LEVELS[level](log_ratio, tokens.mask)).expand_as(tokens.mask)


def no_correction(tokens: Tokens) -> Float[Tensor, "B T"]:
    """1 everywhere: sampler and learner are taken to be the same policy."""
    return torch.ones_like(tokens.old_logprobs)


def truncate(tokens: Tokens, *, cap: float = 2.0, level: Level = "token") -> Float[Tensor, "B T"]:
    """The sampler ratio, at most `cap`: truncated importance sampling.

    1 where sampler and learner agree. The cap bounds the variance that a few tokens which the
    sampler thought unlikely would bring; below it the gradient is unbiased (per token up to the
    drift of the prefix; per sequence exactly).
    """
    return sampler_ratio(tokens, level=level).clamp(max=cap)


def mask_outside(
    tokens: Tokens, *, low: float = 0.5, high: float = 2.0, level: Level = "token"
) -> Float[Tensor, "B T"]:
    """The sampler ratio between `low` and `high`, 0 outside: masked importance sampling.

    A token, or completion, on which sampler and learner disagree that much is no evidence.
    """
    ratio = sampler_ratio(tokens, level=level)
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


def _own(log_ratio: Tensor, mask: Tensor) -> Tensor:
    del mask
    return log_ratio


_LEVELS = MappingProxyType({"token": _own, "sequence": sequence_sum, "sequence_mean": sequence_mean})

CORRECTIONS = MappingProxyType({"none": no_correction, "truncate": truncate, "mask_outside": mask_outside})
