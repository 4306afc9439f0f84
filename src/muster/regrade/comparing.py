"""How two vectors of coefficients, and two lists of advantages, go together; sums, so that steps add up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch

from muster.records import Group
from muster.regrade.coefficients import Coefficients
from muster.store import Agreement, Graded


@dataclass(frozen=True, kw_only=True, slots=True)
class Products:
    """What the agreement of coefficients a (before) and b (after) is made of."""

    ab: float = 0.0
    aa: float = 0.0
    bb: float = 0.0
    same: int = 0
    """Tokens with a coefficient on either side, and the same sign on both."""
    either: int = 0
    """Tokens with a coefficient on either side."""
    tokens: int = 0
    unknown: int = 0
    equal: bool = True
    """Every coefficient is known and the same to the last bit."""

    def __add__(self, other: Self) -> Self:
        """Those of both parts together."""
        sums = {
            item.name: getattr(self, item.name) + getattr(other, item.name)
            for item in fields(self)
            if item.name != "equal"
        }
        return type(self)(**sums, equal=self.equal and other.equal)

    def agreement(self) -> Agreement:
        """As shares and angles."""
        return Agreement(
            cosine=self.ab / math.sqrt(self.aa * self.bb) if self.aa and self.bb else None,
            same_sign=self.same / self.either if self.either else None,
            relative_norm=math.sqrt(self.bb / self.aa) if self.aa else None,
            tokens=self.tokens,
            unknown=self.unknown,
        )


def products(before: Coefficients, after: Coefficients) -> Products:
    """Of the tokens whose coefficients are known on both sides."""
    a, b = before.values[before.mask], after.values[after.mask]
    is_known = ~(a.isnan() | b.isnan())
    a, b = a[is_known], b[is_known]
    either = (a != 0) | (b != 0)
    return Products(
        ab=float(a @ b),
        aa=float(a @ a),
        bb=float(b @ b),
        same=int((a.sign() == b.sign())[either].sum()),
        either=int(either.sum()),
        tokens=len(a),
        unknown=int((~is_known).sum()),
        equal=bool(is_known.all()) and torch.equal(a, b),
    )


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's; None for fewer than two pairs, and where one side is all the same."""
    if len(pairs) < 2:
        return None
    means = [math.fsum(side) / len(pairs) for side in zip(*pairs, strict=True)]
    rests = [(x - means[0], y - means[1]) for x, y in pairs]
    spread = math.fsum(x * x for x, _ in rests) * math.fsum(y * y for _, y in rests)
    return math.fsum(x * y for x, y in rests) / math.sqrt(spread) if spread > 0 else None


def graded(groups: Sequence[Group], coefficients: Coefficients) -> Graded:
    """Scores of all the step's groups, and clipped tokens of those that were trained on."""
    scores = [rollout.score for group in groups for rollout in group.rollouts]
    numbers = [score.value for score in scores if score.value is not None]
    return Graded(
        total=math.fsum(numbers),
        scored=len(numbers),
        failed=sum(score.is_failure for score in scores),
        abstained=sum(score.is_abstention for score in scores),
        mixed=sum(len({r.score.value for r in group.rollouts} - {None}) > 1 for group in groups),
        clipped_low=coefficients.clipped_low,
        clipped_high=coefficients.clipped_high,
        tokens=coefficients.tokens,
    )


def added(parts: Sequence[Graded]) -> Graded:
    """Those of all steps."""
    return Graded(**{item.name: sum(getattr(part, item.name) for part in parts) for item in fields(Graded)})
