"""Policy objectives: tokens in, one loss per token out; lower is better.

Axes: B rows (one completion each), T completion positions.

`ratio` is policy over old policy, r = exp(logprobs - old_logprobs); A is the advantage.
"""

from collections.abc import Callable
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from muster.algo.ratios import exp_bounded, sequence_mean, sequence_sum, token_log_ratio
from muster.algo.tokens import Tokens

Objective = Callable[[Tokens], Float[Tensor, "B T"]]


def reinforce(tokens: Tokens) -> Float[Tensor, "B T"]:
    """-A * logprob: the plain policy gradient, right only for samples of the policy itself."""
    return -tokens.advantages[:, None] * tokens.logprobs


def clip(
    tokens: Tokens, *, low: float = 0.2, high: float = 0.2, cap: float | None = None
) -> Float[Tensor, "B T"]:
    """-min(r A, bounded(r) A), r bounded to 1 - low .. 1 + high: a token that moved far enough stops.

    PPO (arXiv:1707.06347) as in GRPO; DAPO (arXiv:2503.14476) sets `high` above `low`. `cap`
    bounds the ratio itself, so that A < 0 can't pull without limit either: dual clip
    (arXiv:1912.09729), TRL's `delta` (arXiv:2505.07291); it should exceed 1 + high.
    """
    return _clipped(exp_bounded(token_log_ratio(tokens)), tokens, low, high, cap)


def gspo(
    tokens: Tokens, *, low: float = 3e-4, high: float = 4e-4, cap: float | None = None
) -> Float[Tensor, "B T"]:
    """The clipped objective on the ratio of the sequence, the same at each of its tokens.

    GSPO (arXiv:2507.18071): s = exp(mean of the log-ratios over the completion). It stays so
    close to 1 that a clip range of 0.2 would never be reached.
    """
    log_ratio = sequence_mean(token_log_ratio(tokens), tokens.mask)
    return _clipped(exp_bounded(log_ratio), tokens, low, high, cap).expand_as(tokens.mask)


def cispo(tokens: Tokens, *, cap: float = 5.0, floor: float = 0.0) -> Float[Tensor, "B T"]:
    """-stop(clamp(r, floor, cap)) A logprob: bounds a token's weight, never drops its gradient.

    CISPO (MiniMax-M1, arXiv:2506.13585). `cap` and `floor` are ratios themselves, as TRL has it
    (5 as in arXiv:2510.13786), not distances from 1.
    """
    weight = exp_bounded(token_log_ratio(tokens)).clamp(floor, cap).detach()
    return -weight * tokens.advantages[:, None] * tokens.logprobs


def sapo(tokens: Tokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Float[Tensor, "B T"]:
    """-(4 / tau) sigmoid(tau (r - 1)) A: a gate that closes softly, faster for A <= 0.

    SAPO (arXiv:2511.20347). At r = 1 its gradient is that of `clip`.
    """
    advantages = tokens.advantages[:, None]
    tau = torch.where(advantages > 0, tau_positive, tau_negative)
    ratio = exp_bounded(token_log_ratio(tokens))
    return -(4.0 / tau) * torch.sigmoid(tau * (ratio - 1.0)) * advantages


def vespo(
    tokens: Tokens,
    *,
    k_positive: float = 2.0,
    lambda_positive: float = 3.0,
    k_negative: float = 3.0,
    lambda_negative: float = 2.0,
) -> Float[Tensor, "B T"]:
    """-stop(w^k exp(lambda (1 - w))) A logprob, where w is the ratio of the whole sequence.

    VESPO (arXiv:2602.10693), with its own k and lambda for A >= 0 and A < 0. w is policy over
    *sampler*, not normalized by length: staleness and the gap between sampler and learner are
    one ratio here, so it goes with no sampler correction.
    """
    is_positive = tokens.advantages[:, None] >= 0
    k = torch.where(is_positive, k_positive, k_negative)
    rate = torch.where(is_positive, lambda_positive, lambda_negative)
    log_w = sequence_sum((tokens.logprobs - tokens.sampler_logprobs).detach(), tokens.mask)
    # The kernel is evaluated in logs: w^k alone overflows for sequences that drifted apart.
    kernel = (k * log_w + rate * (1.0 - exp_bounded(log_w))).exp()
    return -kernel * tokens.advantages[:, None] * tokens.logprobs


def _clipped(
    ratio: Float[Tensor, "B #T"], tokens: Tokens, low: float, high: float, cap: float | None
) -> Float[Tensor, "B #T"]:
    advantages = tokens.advantages[:, None]
    bounded = ratio if cap is None else ratio.clamp(max=cap)
    return -torch.minimum(bounded * advantages, ratio.clamp(1.0 - low, 1.0 + high) * advantages)


OBJECTIVES = MappingProxyType(
    {"reinforce": reinforce, "clip": clip, "gspo": gspo, "cispo": cispo, "sapo": sapo, "vespo": vespo}
)
