"""Groups to advantages: which rollouts count, what reward enters, what each is worth.

Axes: K rewards, P prompts, G group.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from muster.algo.filters import has_signal, overlong_penalty
from muster.records import Group

Advantage = Callable[[Tensor], Tensor]
Combine = Callable[[Tensor, Tensor, Advantage], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdict:
    """What the rewards of some groups amount to; ragged groups are padded at the end."""

    rewards: Float[Tensor, "P G"]
    """The number that entered the statistics; NaN where there is none."""
    advantages: Float[Tensor, "P G"]
    counts: Bool[Tensor, "P G"]
    """True for a rollout that belongs in the loss."""
    signal: Bool[Tensor, " P"]
    """False for a group whose advantages are all 0."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Turns the scores of groups into advantages."""

    advantage: Advantage
    combine: Combine
    weights: dict[str, float]
    """By reward name."""
    mask_truncated: bool = False
    """Leave truncated completions out of the loss; their rewards stay in the group's statistics."""
    overlong: tuple[int, int] | None = None
    """Completion limit and zone of DAPO's soft penalty, in tokens; None without it."""

    def __call__(self, groups: Sequence[Group], kl_penalty: Float[Tensor, "P G"] | None = None) -> Verdict:
        """The advantages of the groups' rollouts; `kl_penalty` is subtracted from their rewards.

        Penalties are a reward of their own of weight 1: one more term of the sum.
        """
        parts = self._parts(groups)
        has_number = ~parts.isnan().all(dim=0)
        factors = [weight for weight in self.weights.values() if weight]
        extra = self._penalties(groups, kl_penalty)
        if extra is not None:
            parts = torch.cat([parts, extra.masked_fill(~has_number, math.nan)[None]])
            factors.append(1.0)
        weights = torch.tensor(factors, dtype=parts.dtype)
        advantages = self.combine(parts, weights, self.advantage)
        total = (parts * weights[:, None, None]).nansum(dim=0)
        counts = has_number
        if self.mask_truncated:
            counts = counts & ~_table(groups, lambda rollout: rollout.completion.is_truncated, False).bool()
        return Verdict(
            rewards=total.masked_fill(~has_number, math.nan),
            advantages=advantages,
            counts=counts,
            signal=has_signal(advantages.masked_fill(~counts, 0.0)),
        )

    def _parts(self, groups: Sequence[Group]) -> Float[Tensor, "K P G"]:
        """Each reward's numbers; a rollout of which any reward failed has none.

        A reward of weight 0 is for the logs: alone it doesn't make a number of an abstention.
        """

        def number(name: str) -> Tensor:
            return _table(
                groups,
                lambda rollout: (
                    math.nan if rollout.score.is_failure else _or_nan(rollout.score.parts.get(name))
                ),
                math.nan,
            )

        return torch.stack([number(name) for name, weight in self.weights.items() if weight])

    def _penalties(self, groups: Sequence[Group], kl_penalty: Tensor | None) -> Tensor | None:
        extra = None if kl_penalty is None else -kl_penalty.double()
        if self.overlong is not None:
            limit, zone = self.overlong
            lengths = _table(groups, lambda rollout: rollout.completion.num_emitted, 0).long()
            penalty = overlong_penalty(lengths, limit=limit, zone=zone).double()
            extra = penalty if extra is None else extra + penalty
        return extra


def raw_signal(groups: Sequence[Group]) -> list[bool]:
    """Whether the scores of each group differ, before any penalty: what dynamic sampling asks."""
    return [
        len({rollout.score.value for rollout in group.rollouts if rollout.score.value is not None}) > 1
        for group in groups
    ]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _table(groups: Sequence[Group], value: Callable[..., float | bool], absent: float) -> Tensor:
    """[P G] of a number per rollout, padded where a group is smaller than the largest."""
    width = max(len(group.rollouts) for group in groups)
    rows = [[float(value(rollout)) for rollout in group.rollouts] for group in groups]
    return torch.tensor([row + [float(absent)] * (width - len(row)) for row in rows], dtype=torch.float64)
