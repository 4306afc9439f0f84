"""What the groups of a step got, in one line: a prompt's way through a run without opening its rollouts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from muster.store.strict import Line


class Got(NamedTuple):
    """What one group got."""

    sample: str
    scores: Sequence[float]
    """Those that there are: a rollout that failed has none."""
    lengths: Sequence[int]
    """Tokens of each completion."""


def groups_line(step: int, groups: Sequence[Got]) -> Line:
    """The line: each group's number of scores, their mean and ends, its length; the spread of lengths."""
    lengths = sorted(length for group in groups for length in group.lengths)
    return {
        "step": step,
        "length_p10": quantile(lengths, 0.1),
        "length_p90": quantile(lengths, 0.9),
        "groups": [_entry(group) for group in groups],
    }


def _entry(group: Got) -> Line:
    scores, lengths = group.scores, group.lengths
    return {
        "sample": group.sample,
        "scored": len(scores),
        "mean": math.fsum(scores) / len(scores) if scores else None,
        "low": min(scores, default=None),
        "high": max(scores, default=None),
        "length": sum(lengths) / len(lengths) if lengths else None,
    }


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value that this share of the ordered values does not exceed, between neighbours; None for none."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low, rest = int(place), place - int(place)
    return ordered[low] + rest * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])
