"""What the KL estimators say of two distributions: mean, bias, spread and gradient, over the vocabulary.

Axes: N positions, V vocabulary, D draws.

The functions of `muster.algo.kl` read one logprob at a time, so a table of all tokens' logprobs is as good
to them as a batch of sampled ones: weighed by the policy, it gives their expectations without sampling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from muster.algo.kl import KL, exact, k1, k2, k3

ESTIMATORS: Mapping[str, KL] = MappingProxyType({"k1": k1, "k2": k2, "k3": k3})
WITH_RATIO: Mapping[str, KL] = MappingProxyType(
    {
        "k1, differentiable ratio": partial(k1, ratio="differentiable"),
        "k3, differentiable ratio": partial(k3, ratio="differentiable"),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """An estimator over the whole vocabulary, the mean over the positions; in nats."""

    mean: float
    spread: float
    """Standard deviation of one sampled token's estimate around its position's mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """An estimator over sampled tokens, in nats."""

    mean: float
    error: float
    """Standard error of the mean."""
    spread: float
    """As `Expected.spread`, of the draws."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slope:
    """The expected gradient of an estimator by the policy's logits, all positions together."""

    size: float
    """Its norm, over that of the gradient of KL(policy || reference)."""
    forward: float | None
    """Cosine with the gradient of KL(policy || reference); None for a gradient of 0."""
    reverse: float | None
    """Cosine with the gradient of KL(reference || policy)."""


def exact_mean(logprobs: Float[Tensor, "N V"], ref_logprobs: Float[Tensor, "N V"]) -> float:
    """KL(policy || reference) over the vocabulary, the mean over the positions."""
    return float(exact(logprobs, ref_logprobs).mean())


def expected(estimate: KL, logprobs: Float[Tensor, "N V"], ref_logprobs: Float[Tensor, "N V"]) -> Expected:
    """What the estimator gives on average, and how far single estimates lie apart."""
    values, probs = estimate(logprobs, ref_logprobs, None), logprobs.exp()
    mean = (probs * values).sum(-1)
    variance = (probs * (values - mean[:, None]).square()).sum(-1)
    return Expected(mean=float(mean.mean()), spread=float(variance.mean().sqrt()))


def draw(logprobs: Float[Tensor, "N V"], num_draws: int, seed: int) -> Tensor:
    """[N D] token ids, so many drawn from the policy at each position."""
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(logprobs.exp(), num_draws, replacement=True, generator=generator)


def measured(
    estimate: KL, logprobs: Float[Tensor, "N V"], ref_logprobs: Float[Tensor, "N V"], tokens: Tensor
) -> Measured:
    """What the estimator gives on these draws [N D]."""
    values = estimate(logprobs.gather(1, tokens), ref_logprobs.gather(1, tokens), None)
    variance = values.var(dim=1).mean()
    return Measured(
        mean=float(values.mean()),
        error=float((variance / values.numel()).sqrt()),
        spread=float(variance.sqrt()),
    )


def slopes(
    estimators: Mapping[str, KL], logits: Float[Tensor, "N V"], ref_logprobs: Float[Tensor, "N V"]
) -> dict[str, Slope]:
    """The expected gradient of each, by the policy's logits, beside the gradients of both divergences."""
    leaf = logits.detach().requires_grad_()
    logprobs = leaf.log_softmax(-1)

    def gradient(value: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(value.sum(), leaf, retain_graph=True)
        return found.flatten()

    forward, reverse = gradient(exact(logprobs, ref_logprobs)), gradient(exact(ref_logprobs, logprobs))
    found: dict[str, Slope] = {}
    for name, estimate in estimators.items():
        # Tokens are drawn, and then the estimate is differentiated: the draw itself has no gradient.
        values = estimate(logprobs, ref_logprobs, logprobs.detach())
        slope = gradient(logprobs.detach().exp() * values)
        size = float(slope.norm() / forward.norm()) if forward.norm() > 0 else 0.0
        found[name] = Slope(size=size, forward=_cosine(slope, forward), reverse=_cosine(slope, reverse))
    return found


def _cosine(first: Tensor, second: Tensor) -> float | None:
    """None where one of them is nothing but rounding."""
    scale = float(first.norm() * second.norm())
    is_nothing = float(first.norm()) <= 1e-9 * float(second.norm()) or scale == 0
    return None if is_nothing else float(first @ second) / scale
