"""Metrics that add up: over micro-batches and ranks they are those of the whole update.

Axes: B rows (one completion each), T completion positions.

A mean of means is wrong where the parts differ in size, so what is passed on are sums and counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from muster.algo.objectives import Objective
from muster.algo.ratios import Correction, is_clamped, token_log_ratio
from muster.algo.tokens import Tokens, silence


@dataclass(frozen=True, slots=True)
class Stat:
    """A sum over some tokens and their number."""

    total: float
    count: int

    def __add__(self, other: "Stat") -> "Stat":
        """The statistic of both parts together."""
        return Stat(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float | None:
        """The mean; None where there is nothing to take it of."""
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest of some values; minus infinity for none."""

    highest: float

    def __add__(self, other: "Peak") -> "Peak":
        """The peak of both parts together."""
        return Peak(max(self.highest, other.highest))

    @property
    def value(self) -> float | None:
        """The largest value; None where there is none."""
        return None if self.highest == -torch.inf else self.highest


@dataclass(frozen=True, slots=True)
class EffectiveSize:
    """What is needed for the effective sample size of weighted tokens: sums of w, w^2 and 1."""

    total: float
    squares: float
    count: int

    def __add__(self, other: "EffectiveSize") -> "EffectiveSize":
        """The statistic of both parts together."""
        return EffectiveSize(self.total + other.total, self.squares + other.squares, self.count + other.count)

    @property
    def num_effective(self) -> float:
        """(sum of w)^2 / sum of w^2: how many evenly weighted tokens would be as good."""
        return self.total**2 / self.squares if self.squares else 0.0

    @property
    def value(self) -> float | None:
        """The effective size as a share of the tokens: 1 where all weigh the same."""
        return self.num_effective / self.count if self.count else None


Metric = Stat | Peak | EffectiveSize


def merge(parts: Mapping[str, Metric], more: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics of two micro-batches, or ranks, as those of both together."""
    merged = dict(parts)
    for name, metric in more.items():
        merged[name] = merged[name] + metric if name in merged else metric  # pyright: ignore[reportOperatorIssue]
    return merged


_KINDS: Mapping[str, type[Metric]] = {"stat": Stat, "peak": Peak, "effective_size": EffectiveSize}


def to_plain(metrics: Mapping[str, Metric]) -> dict[str, list[object]]:
    """The metrics as numbers under the name of their kind, to be sent to another rank."""
    names = {kind: name for name, kind in _KINDS.items()}
    return {name: [names[type(metric)], *astuple(metric)] for name, metric in metrics.items()}


def from_plain(plain: Mapping[str, Sequence[object]]) -> dict[str, Metric]:
    """The metrics that `to_plain` wrote."""
    return {name: _KINDS[str(kind)](*numbers) for name, (kind, *numbers) in plain.items()}  # type: ignore[arg-type]


def values(metrics: Mapping[str, Metric]) -> dict[str, float | None]:
    """The number of each metric; None where there is none."""
    return {name: metric.value for name, metric in metrics.items()}


def token_metrics(tokens: Tokens, objective: Objective, correction: Correction) -> dict[str, Metric]:
    """What the tokens say about the update, by TRL's names; from raw log-ratios, detached."""
    tokens = _detached(silence(tokens))
    mask = tokens.mask
    log_ratio = token_log_ratio(tokens)
    gap = (tokens.old_logprobs - tokens.sampler_logprobs).abs()
    weight = correction(tokens)
    return {
        "entropy": stat(tokens.entropy, mask),
        "ratio/max": peak(log_ratio.exp(), mask),
        "log_ratio_clamped": stat(is_clamped(log_ratio), mask),
        "sampling/sampling_logp_difference/mean": stat(gap, mask),
        "sampling/sampling_logp_difference/max": peak(gap, mask),
        "sampling/importance_sampling_ratio/mean": stat(weight, mask),
        "sampling/importance_sampling_ratio/max": peak(weight, mask),
        "sampling/effective_share": effective_size(weight, mask),
        **_clip_metrics(tokens, objective),
        **_kl_metrics(tokens),
    }


def stat(values: Float[Tensor, "B T"] | Bool[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Stat:
    """Sum and count of the values that count."""
    return Stat(values[mask].double().sum().item(), int(mask.sum()))


def peak(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Peak:
    """The largest of the values that count."""
    kept = values[mask]
    return Peak(kept.max().item() if kept.numel() else -torch.inf)


def effective_size(weights: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> EffectiveSize:
    """The sums behind the effective sample size of the weights that count."""
    kept = weights[mask].double()
    return EffectiveSize(kept.sum().item(), kept.square().sum().item(), kept.numel())


def is_clipped(tokens: Tokens, objective: Objective) -> Bool[Tensor, "B T"]:
    """Where the objective has no gradient although there is an advantage to learn from.

    The objective itself is asked, whatever its bounds and at whatever level they are; so this
    holds for one that a user wrote, too.
    """
    logprobs = tokens.logprobs.detach().requires_grad_()
    with torch.enable_grad():
        loss = torch.where(tokens.mask, objective(replace(tokens, logprobs=logprobs)), 0.0).sum()
        (gradient,) = torch.autograd.grad(loss, logprobs)
    return (gradient == 0) & (tokens.advantages[:, None] != 0) & tokens.mask


def _clip_metrics(tokens: Tokens, objective: Objective) -> dict[str, Metric]:
    """Shares of clipped tokens: `low` those pushed down far enough, `high` those pushed up far enough.

    What a dual clip's cap stops (advantage below 0, ratio above the cap) counts as `low`.
    """
    clipped = is_clipped(tokens, objective)
    is_low = clipped & (tokens.advantages[:, None] < 0)
    is_high = clipped & (tokens.advantages[:, None] > 0)
    return {
        "clip_ratio/low_mean": stat(is_low, tokens.mask),
        "clip_ratio/high_mean": stat(is_high, tokens.mask),
        "clip_ratio/region_mean": stat(clipped, tokens.mask),
    }


def _kl_metrics(tokens: Tokens) -> dict[str, Metric]:
    if tokens.ref_logprobs is None:
        return {}
    d = tokens.logprobs - tokens.ref_logprobs
    return {"kl": stat(d, tokens.mask), "kl_k3": stat(torch.expm1(-d) + d, tokens.mask)}


def _detached(tokens: Tokens) -> Tokens:
    """The tokens without graph, on the CPU in float64, where raw log-ratios don't overflow."""

    def settle(values: Tensor) -> Tensor:
        return values.detach().to("cpu", torch.float64)

    return Tokens(
        logprobs=settle(tokens.logprobs),
        old_logprobs=settle(tokens.old_logprobs),
        sampler_logprobs=settle(tokens.sampler_logprobs),
        ref_logprobs=None if tokens.ref_logprobs is None else settle(tokens.ref_logprobs),
        entropy=settle(tokens.entropy),
        advantages=settle(tokens.advantages),
        mask=tokens.mask.cpu(),
    )
