"""KL divergence of the policy from the reference, estimated from sampled tokens.

Axes: B rows (one completion each), T completion positions, V vocabulary.

With d = logprob - ref_logprob, k1 = d, k2 = d^2 / 2 and k3 = exp(-d) - 1 + d
(joschu.net/blog/kl-approx.html). That an estimator has the right mean doesn't say what its
gradient optimizes; each function does. `ratio` puts policy over old policy in front:
`detached` corrects the mean for samples of the old policy, `differentiable` adds the gradient of
the sampling itself.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from muster.algo.ratios import LOG_RATIO_BOUND, exp_bounded

Ratio = Literal["none", "detached", "differentiable"]
KL = Callable[[Float[Tensor, "B T"], Float[Tensor, "B T"], Float[Tensor, "B T"] | None], Float[Tensor, "B T"]]
"""From logprobs, ref_logprobs and old_logprobs (None: the logprobs now) to a KL per token."""


def k1(
    logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"] | None = None,
    *,
    ratio: Ratio = "none",
) -> Float[Tensor, "B T"]:
    """d: unbiased, may be negative; what is logged, and what is charged in the reward.

    In the loss it optimizes nothing: its expected gradient is 0. With a differentiable ratio it
    is the gradient of KL(policy || reference).
    """
    return _in_front(logprobs - ref_logprobs, logprobs, old_logprobs, ratio)


def k2(
    logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"] | None = None,
    *,
    ratio: Ratio = "none",
) -> Float[Tensor, "B T"]:
    """d^2 / 2: biased as a value; its gradient is that of KL(policy || reference).

    That holds for samples of the policy itself; on later passes over the same samples it takes
    the detached ratio.
    """
    return _in_front((logprobs - ref_logprobs).square() / 2, logprobs, old_logprobs, ratio)


def k3(
    logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"] | None = None,
    *,
    ratio: Ratio = "none",
) -> Float[Tensor, "B T"]:
    """exp(-d) - 1 + d: unbiased and never negative; its gradient is that of KL(reference || policy).

    The GRPO paper's estimator. With a differentiable ratio (DeepSeek-V3.2, arXiv:2512.02556) it
    is the gradient of KL(policy || reference). d is bounded from below: exp(-d) would overflow.
    """
    d = (logprobs - ref_logprobs).clamp(min=-LOG_RATIO_BOUND)
    return _in_front(torch.expm1(-d) + d, logprobs, old_logprobs, ratio)


def no_kl(
    logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """0: the policy may go where the rewards lead it."""
    del ref_logprobs, old_logprobs
    return torch.zeros_like(logprobs)


def exact(logprobs: Float[Tensor, "*B V"], ref_logprobs: Float[Tensor, "*B V"]) -> Float[Tensor, "*B"]:
    """KL(policy || reference) over the whole vocabulary, from normalized logprobs: for checks."""
    d = (logprobs - ref_logprobs).masked_fill(logprobs.isneginf(), 0.0)  # 0 log 0 is 0, not NaN
    return (logprobs.exp() * d).sum(-1)


def _in_front(kl: Tensor, logprobs: Tensor, old_logprobs: Tensor | None, ratio: Ratio) -> Tensor:
    if ratio == "none":
        return kl
    weight = exp_bounded(logprobs - (logprobs.detach() if old_logprobs is None else old_logprobs))
    return kl * (weight.detach() if ratio == "detached" else weight)


KLS = MappingProxyType({"none": no_kl, "k1": k1, "k2": k2, "k3": k3})
