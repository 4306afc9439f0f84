"""From the rewards of a group to one advantage per rollout.

Axes: K rewards, P prompts, G rollouts of a prompt, B rows (one completion each), T positions.

A rollout that is absent (abstained, failed, dropped) is NaN on the way in, takes no part in any
statistic, and is 0 on the way out. A group whose rewards are all equal has advantages of exactly
0, whatever the rewards and the float type; so has a group that shrank to one.
"""

from collections.abc import Callable
from types import MappingProxyType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Advantage = Callable[[Float[Tensor, "P G"]], Float[Tensor, "P G"]]
Combine = Callable[[Float[Tensor, "K P G"], Float[Tensor, " K"], Advantage], Float[Tensor, "P G"]]


def zscore(rewards: Float[Tensor, "P G"], *, eps: float = 1e-4) -> Float[Tensor, "P G"]:
    """Reward minus its group's mean, over the group's standard deviation plus `eps`.

    GRPO (arXiv:2402.03300). The standard deviation is the unbiased one (divided by G - 1).
    """
    centered = _centered(rewards)
    return _settled(centered / (_std(centered, dim=1) + eps), rewards)


def center(rewards: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    """Reward minus its group's mean.

    Dr. GRPO (arXiv:2503.20783): dividing by the standard deviation would give questions that
    are nearly always or nearly never solved a larger step than the rest.
    """
    return _settled(_centered(rewards), rewards)


def leave_one_out(rewards: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    """Reward minus the mean of the others in its group.

    RLOO (arXiv:2402.14740): the baseline doesn't contain the reward it's taken from, so the
    gradient is unbiased. Equal to G / (G - 1) times `center`.
    """
    num_present = _num_present(rewards, dim=1)
    return _settled(_centered(rewards) * num_present / (num_present - 1).clamp(min=1), rewards)


def batch_scaled(rewards: Float[Tensor, "P G"], *, eps: float = 1e-4) -> Float[Tensor, "P G"]:
    """Reward minus its group's mean, over the standard deviation of all rewards plus `eps`.

    The differences between groups count in the divisor (arXiv:2508.08221; TRL's
    `scale_rewards="batch"`).
    """
    values = rewards.double()
    spread = _std(values - values.nanmean(), dim=(0, 1))
    return _settled(_centered(rewards) / (spread + eps), rewards)


def batch_whitened(rewards: Float[Tensor, "P G"], *, eps: float = 1e-8) -> Float[Tensor, "P G"]:
    """Reward minus its group's mean, over the standard deviation of these differences plus `eps`.

    REINFORCE++ with a group baseline (arXiv:2501.03262). The standard deviation is the unbiased
    one over all rollouts.
    """
    centered = _centered(rewards)
    return _settled(centered / (_std(centered, dim=(0, 1)) + eps), rewards)


def sum_then_normalize(
    parts: Float[Tensor, "K P G"], weights: Float[Tensor, " K"], advantage: Advantage
) -> Float[Tensor, "P G"]:
    """The advantage of the weighted sum of several rewards.

    A part that abstained adds nothing; a rollout without any part is absent.
    """
    return advantage(_weighted_sum(parts, weights))


def normalize_then_sum(
    parts: Float[Tensor, "K P G"], weights: Float[Tensor, " K"], advantage: Advantage
) -> Float[Tensor, "P G"]:
    """The weighted sum of each reward's advantages, over its standard deviation in the batch.

    GDPO (arXiv:2601.05242): rewards on different scales keep their share, and combinations that
    have the same sum stay different. The sum isn't centred again: each part has mean 0 in each
    group already, and subtracting a mean of 1e-17 would give signal to groups that have none.
    """
    advantages = torch.stack([advantage(part) for part in parts])
    combined = _weighted_sum(advantages.masked_fill(parts.isnan(), torch.nan), weights).double()
    return _settled(combined / (_std(combined, dim=(0, 1)) + 1e-4), parts)


def token_returns(
    rewards: Float[Tensor, " B"],
    kl: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    kl_coef: float,
) -> Float[Tensor, "B T"]:
    """What is still to come at each token: the reward minus `kl_coef` times the KL from here on.

    REINFORCE++ (arXiv:2501.03262), undiscounted. Tokens that aren't the policy's own cost nothing.
    """
    costs = torch.where(mask, kl, 0.0)
    still_to_come = costs.flip(1).cumsum(1).flip(1)
    return rewards[:, None] - kl_coef * still_to_come


def whiten(returns: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Returns with mean 0 and unbiased variance 1 over all tokens that count; 0 elsewhere.

    The second half of REINFORCE++: over a whole update, never a micro-batch.
    """
    values = returns[mask].double()
    if values.numel() < 2:
        return torch.zeros_like(returns)
    scaled = (returns - values.mean()) * (values.var() + 1e-8).rsqrt()
    return torch.where(mask, scaled, 0.0).to(returns.dtype)


def _centered(rewards: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    """Reward minus its group's mean in float64, exactly 0 in equal groups; NaN where absent."""
    values = rewards.double()
    absent = values.isnan()
    lowest = values.masked_fill(absent, torch.inf).amin(dim=1, keepdim=True)
    highest = values.masked_fill(absent, -torch.inf).amax(dim=1, keepdim=True)
    # The mean of equal numbers may differ from them in the last bit; dividing that bit by a
    # small deviation would make an advantage of it.
    is_equal = (lowest == highest) & ~absent
    return torch.where(is_equal, 0.0, values - values.nanmean(dim=1, keepdim=True))


def _std(centered: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Unbiased standard deviation of values that have mean 0; NaN takes no part."""
    squares = centered.square().nansum(dim=dim, keepdim=True)
    return (squares / (_num_present(centered, dim) - 1).clamp(min=1)).sqrt()


def _num_present(values: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    return values.isfinite().sum(dim=dim, keepdim=True)


def _weighted_sum(parts: Float[Tensor, "K P G"], weights: Float[Tensor, " K"]) -> Float[Tensor, "P G"]:
    """Sum over the parts that are there, in float64; NaN where none is."""
    total = (parts.double() * weights.double()[:, None, None]).nansum(dim=0)
    return total.masked_fill(parts.isnan().all(dim=0), torch.nan)


def _settled(advantages: Tensor, rewards: Tensor) -> Tensor:
    """Advantages in the rewards' float type, 0 where a rollout is absent."""
    return advantages.nan_to_num(nan=0.0).to(rewards.dtype)


ADVANTAGES = MappingProxyType(
    {
        "zscore": zscore,
        "center": center,
        "leave_one_out": leave_one_out,
        "batch_scaled": batch_scaled,
        "batch_whitened": batch_whitened,
    }
)
COMBINES = MappingProxyType(
    {"sum_then_normalize": sum_then_normalize, "normalize_then_sum": normalize_then_sum}
)
