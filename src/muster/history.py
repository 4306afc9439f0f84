"""What a run remembers of the prompts it drew: how well each was answered, and whether it still teaches.

A group teaches by the differences between its scores: for scores of 0 and 1 and a pass rate p their
expected variance is p(1 - p), which is 0 for a prompt that is never or always solved. Drawing prompts by
it: arXiv:2408.15099, arXiv:2502.12272.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from muster.records import Group

HALF_LIFE = 100
"""Steps after which what an older policy showed counts half."""
PRIOR = 2.0
"""Rollouts, less one, that the assumption about a new prompt is worth."""
FLOOR = 0.02
"""Least weight in a draw; a prompt that was never drawn has 1."""
_LARGEST = 1e100
"""A score beyond it counts as this much, so that no sum of squares overflows."""


class Visit(NamedTuple):
    """The scores of one group: the raw verdicts, before any penalty."""

    sample_id: str
    scores: Sequence[float | None]
    """One per rollout; None for a rollout that failed or that no reward judged."""


class Tally(NamedTuple):
    """What the groups of one prompt amount to; all but `step` are sums that halve in `HALF_LIFE` steps."""

    step: int
    """In which the prompt was drawn last, and as of which the sums are."""
    scored: float
    """Rollouts with a score."""
    total: float
    """Their scores."""
    tried: float
    """Rollouts less one per group, with a score or without."""
    spread: float
    """Squared distances of the scores from their group's mean."""
    taught: float
    """Scored rollouts less one per group, over the groups whose scores differ."""

    def at(self, step: int) -> Self:
        """The same as of a later step."""
        fade = 2.0 ** ((self.step - step) / HALF_LIFE)
        return self._make((step, *(fade * value for value in self[1:])))

    @property
    def mean(self) -> float | None:
        """Mean score, the pass rate where scores are 0 and 1; None where no rollout had one."""
        return self.total / self.scored if self.scored else None

    @property
    def variance(self) -> float | None:
        """Variance of a score within a group, the estimate of p(1 - p) where scores are 0 and 1.

        Pooled over groups, unbiased, and exactly 0 where no group's scores differed. A rollout without
        a score is one from which nothing could be learned.
        """
        return self.spread / self.tried if self.tried else None


def visits_of(groups: Iterable[Group]) -> list[Visit]:
    """What the groups have to say about their prompts."""
    return [Visit(group.sample.id, [rollout.score.value for rollout in group.rollouts]) for group in groups]


@dataclass(frozen=True, kw_only=True)
class History:
    """Every prompt that was drawn, by sample id, as of a step."""

    step: int = 0
    tallies: Mapping[str, Tally] = field(default_factory=dict)

    def after(self, step: int, visits: Iterable[Visit]) -> Self:
        """The history once the groups of a later step are in it."""
        tallies = dict(self.tallies)
        for visit in visits:
            before = tallies.get(visit.sample_id, Tally(step, 0.0, 0.0, 0.0, 0.0, 0.0)).at(step)
            new = _tally(step, visit.scores)
            sums = (old + more for old, more in zip(before[1:], new[1:], strict=True))
            tallies[visit.sample_id] = Tally(step, *sums)
        return type(self)(step=step, tallies=tallies)

    def weights(self, sample_ids: Sequence[str]) -> NDArray[np.float64]:
        """What each prompt counts in a draw: its expected variance over that of a group that teaches.

            w = max(FLOOR, (PRIOR + spread / v) / (PRIOR + tried))
            v = sum of all spreads / sum of all `taught`

        A prompt that was never drawn weighs 1: it is taken to teach as the average group that taught.
        """
        taught = math.fsum(tally.at(self.step).taught for tally in self.tallies.values())
        spread = math.fsum(tally.at(self.step).spread for tally in self.tallies.values())
        usual = spread / taught if taught else 0.0
        weights = np.ones(len(sample_ids))
        for place, sample_id in enumerate(sample_ids):
            if (tally := self.tallies.get(sample_id)) is not None:
                weights[place] = _weight(tally.at(self.step), usual)
        return weights

    def expectations(self, sample_ids: Sequence[str]) -> dict[str, float | None]:
        """Metrics of prompts about to be drawn: share seen before, and the mean score expected of those."""
        seen = [self.tallies[sample_id] for sample_id in sample_ids if sample_id in self.tallies]
        means = [tally.mean for tally in seen if tally.mean is not None]
        return {
            "prompts/seen_share": len(seen) / len(sample_ids) if sample_ids else None,
            "prompts/expected_reward": math.fsum(means) / len(means) if means else None,
        }

    def to_plain(self) -> dict[str, object]:
        """As JSON has it; every float comes back as it was."""
        return {"step": self.step, "tallies": {name: list(tally) for name, tally in self.tallies.items()}}

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """From what `to_plain` gave; raises ValueError for anything else."""
        match plain:
            case {"step": int(step), "tallies": dict(tallies)}:
                return cls(step=step, tallies={str(name): _read(row) for name, row in tallies.items()})
            case _:
                raise ValueError(f"no step and tallies in {str(plain)[:80]}")


def _tally(step: int, scores: Sequence[float | None]) -> Tally:
    """Of one group."""
    there = [min(max(score, -_LARGEST), _LARGEST) for score in scores if score is not None]
    differ = len(set(there)) > 1
    mean = math.fsum(there) / len(there) if there else 0.0
    return Tally(
        step,
        scored=float(len(there)),
        total=math.fsum(there),
        tried=float(max(len(scores) - 1, 0)),
        spread=math.fsum((score - mean) ** 2 for score in there) if differ else 0.0,
        taught=float(len(there) - 1) if differ else 0.0,
    )


def _weight(tally: Tally, usual: float) -> float:
    signal = tally.spread / usual if usual else 0.0
    return max(FLOOR, (PRIOR + signal) / (PRIOR + tally.tried))


def _read(row: object) -> Tally:
    match row:
        case [int(step), *sums] if len(sums) == len(Tally._fields) - 1:
            return Tally(step, *(float(value) for value in sums))
        case _:
            raise ValueError(f"{str(row)[:80]} is no tally of a prompt")
