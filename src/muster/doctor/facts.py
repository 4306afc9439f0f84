"""What the rollouts of one step show, as the few numbers that rules need; cheap enough for every step."""

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from muster.doctor.finding import GroupRef, RolloutRef
from muster.doctor.reference import KlFacts, kl_facts
from muster.records import Group, Rollout, Trace
from muster.stats import mean_of

MAX_REFS = 3
NUM_TOKENS = 12
"""The commonest tokens of a step that are watched."""
_LEAST_FOR_PAIRS = 4
"""Tokens from which on a completion can be seen to repeat itself."""


class Spread(NamedTuple):
    """Of the rollouts of a step."""

    mean: float
    deviation: float


class Pool(NamedTuple):
    """Sums of products of deviations from group means: the correlation within groups, over any of them."""

    xy: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    degrees: int = 0
    """Rollouts less groups."""

    def plus(self, other: "Pool") -> "Pool":
        """Of both."""
        return Pool(*(a + b for a, b in zip(self, other)))  # pyright: ignore[reportArgumentType]

    @property
    def correlation(self) -> float | None:
        """Pearson's r within groups; None where one of the two never varies."""
        return self.xy / math.sqrt(self.xx * self.yy) if self.xx > 0 and self.yy > 0 else None


class TokenUse(NamedTuple):
    """One token in the completions of a step."""

    share: float
    """Of all tokens."""
    with_score: Pool
    """Its count in a completion against the score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFacts:
    """One group."""

    ref: GroupRef
    prompt: int
    """Hash of the prompt's text, within this process."""
    num_rollouts: int
    num_distinct: int
    scores: Spread | None
    """None where fewer than two rollouts have a score."""
    lowest: float | None
    """None where no rollout has a score."""
    highest: float | None
    largest_advantage: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """One step."""

    step: int
    groups: tuple[GroupFacts, ...]
    distinct_pairs: float | None
    """Different pairs of neighbouring tokens as a share of a completion's pairs, mean: 1 repeats nothing."""
    same_mode: float | None
    """Share of the prompts whose commonest completion is the step's commonest; None for one prompt."""
    lengths: Spread | None
    """In tokens; None where the tokens aren't known."""
    length_with_score: Pool
    """Tokens against score, of completions that ended by themselves."""
    num_cut: int
    cost_of_cut: float | None
    """Mean score of whole completions less that of cut ones of the same group."""
    ref_logprobs: Spread | None
    """Per token, mean over a completion; None without reference."""
    kl: KlFacts | None
    """None without reference."""
    advantage_size: float | None
    """Mean |advantage| over the same tokens."""
    num_without_advantage: int
    """Rollouts with a score that differs from their group's, and no advantage: they don't count."""
    tokens: dict[int, TokenUse]
    failures: Counter[str]
    best: tuple[RolloutRef, ...]
    repetitive: tuple[RolloutRef, ...]
    twins: tuple[RolloutRef, ...]
    """The completion that is given most often in a group."""
    longest: tuple[RolloutRef, ...]
    cut: tuple[RolloutRef, ...]
    failed: tuple[RolloutRef, ...]


class Placed(NamedTuple):
    """A rollout with what belongs to it."""

    ref: RolloutRef
    rollout: Rollout
    trace: Trace | None

    @property
    def ids(self) -> tuple[int, ...]:
        """Its tokens, those that the policy emitted."""
        completion = self.rollout.completion
        return tuple(token for turn in completion.turns for token in completion.ids[turn.start : turn.stop])

    @property
    def said(self) -> Hashable:
        """What it is told from others by: its tokens, or its text where they aren't known."""
        return self.ids or self.rollout.text

    @property
    def score(self) -> float | None:
        """Its score."""
        return self.rollout.score.value


def facts_of(step: int, groups: Sequence[Group], traces: Sequence[Sequence[Trace]]) -> StepFacts:
    """The facts of a step."""
    by_group = [
        [
            Placed(
                RolloutRef(step, place, group.id, index), rollout, traces[place][index] if traces else None
            )
            for index, rollout in enumerate(group.rollouts)
        ]
        for place, group in enumerate(groups)
    ]
    placed = [one for some in by_group for one in some]
    pairs = {one.ref: value for one in placed if (value := _distinct_pairs(one.ids)) is not None}
    scored = [one for one in placed if one.score is not None]
    return StepFacts(
        step=step,
        groups=tuple(_group_facts(group, some) for group, some in zip(groups, by_group)),
        distinct_pairs=mean_of(list(pairs.values())),
        same_mode=_same_mode(groups, by_group),
        lengths=_spread([len(one.ids) for one in placed]) if any(one.ids for one in placed) else None,
        length_with_score=_pooled(
            [
                [(float(len(one.ids)), one.score) for one in some if _is_whole(one) and one.score is not None]
                for some in by_group
            ]
        ),
        num_cut=sum(one.rollout.completion.is_truncated for one in placed),
        cost_of_cut=_cost_of_cut(by_group),
        ref_logprobs=_spread(
            [statistics.fmean(t.ref_logprobs) for one in placed if (t := one.trace) and t.ref_logprobs]
        ),
        kl=kl_facts([[(one.rollout, one.trace) for one in some] for some in by_group]),
        advantage_size=_advantage_size(placed),
        num_without_advantage=_num_without_advantage(by_group),
        tokens=_tokens(by_group),
        failures=Counter(why for one in placed for why in one.rollout.score.failures.values()),
        best=_refs(sorted(scored, key=lambda one: -(one.score or 0.0))),
        repetitive=tuple(sorted(pairs, key=lambda ref: pairs[ref])[:MAX_REFS]),
        twins=_twins(by_group),
        longest=_refs(sorted(placed, key=lambda one: -len(one.ids))),
        cut=_refs(one for one in placed if one.rollout.completion.is_truncated),
        failed=_refs(one for one in placed if one.rollout.score.is_failure),
    )


def _refs(placed: Iterable[Placed]) -> tuple[RolloutRef, ...]:
    return tuple(one.ref for one in placed)[:MAX_REFS]


def _group_facts(group: Group, placed: Sequence[Placed]) -> GroupFacts:
    scores = [one.score for one in placed if one.score is not None]
    first = placed[0].ref if placed else RolloutRef(0, 0, group.id, 0)
    return GroupFacts(
        ref=GroupRef(first.step, first.place, group.id, group.sample.id),
        prompt=hash(group.prompt_text),
        num_rollouts=len(placed),
        num_distinct=len({one.said for one in placed}),
        scores=_spread(scores) if len(scores) > 1 else None,
        lowest=min(scores, default=None),
        highest=max(scores, default=None),
        largest_advantage=max((abs(one.trace.advantage) for one in placed if one.trace), default=0.0),
    )


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(statistics.fmean(values), statistics.pstdev(values)) if values else None


def _is_whole(one: Placed) -> bool:
    return not one.rollout.completion.is_truncated


def _distinct_pairs(ids: Sequence[int]) -> float | None:
    if len(ids) < _LEAST_FOR_PAIRS:
        return None
    return len(set(pairwise(ids))) / (len(ids) - 1)


def _same_mode(groups: Sequence[Group], by_group: Sequence[Sequence[Placed]]) -> float | None:
    modes: dict[str, Hashable] = {}
    for group, some in zip(groups, by_group):
        common = Counter(one.said for one in some).most_common(1)
        if common:
            modes[group.prompt_text] = common[0][0]
    if len(modes) < 2:
        return None
    return Counter(modes.values()).most_common(1)[0][1] / len(modes)


def _pooled(groups: Sequence[Sequence[tuple[float, float]]]) -> Pool:
    """Of pairs of numbers, group by group."""
    pool = Pool()
    for pairs in groups:
        if len(pairs) < 2:
            continue
        x_mean = statistics.fmean(x for x, _ in pairs)
        y_mean = statistics.fmean(y for _, y in pairs)
        centered = [(x - x_mean, y - y_mean) for x, y in pairs]
        pool = pool.plus(
            Pool(
                math.fsum(x * y for x, y in centered),
                math.fsum(x * x for x, _ in centered),
                math.fsum(y * y for _, y in centered),
                len(pairs) - 1,
            )
        )
    return pool


def _cost_of_cut(groups: Sequence[Sequence[Placed]]) -> float | None:
    costs: list[float] = []
    for some in groups:
        whole = [one.score for one in some if _is_whole(one) and one.score is not None]
        cut = [one.score for one in some if not _is_whole(one) and one.score is not None]
        if whole and cut:
            costs.append(statistics.fmean(whole) - statistics.fmean(cut))
    return mean_of(costs)


def _advantage_size(placed: Sequence[Placed]) -> float | None:
    weighted = [(abs(trace.advantage), sum(trace.mask)) for one in placed if (trace := one.trace)]
    count = sum(number for _, number in weighted)
    return math.fsum(size * number for size, number in weighted) / count if count else None


def _num_without_advantage(groups: Sequence[Sequence[Placed]]) -> int:
    count = 0
    for some in groups:
        scores = {one.score for one in some if one.score is not None}
        idle = [
            one for one in some if one.ids and one.trace and not any(one.trace.mask) and one.score is not None
        ]
        count += len(idle) if len(scores) > 1 else 0
    return count


def _tokens(groups: Sequence[Sequence[Placed]]) -> dict[int, TokenUse]:
    counts = {one.ref: Counter(one.ids) for some in groups for one in some}
    total = Counter[int]()
    for count in counts.values():
        total.update(count)
    whole = sum(total.values())
    return {
        token: TokenUse(
            number / whole,
            _pooled(
                [
                    [(float(counts[one.ref][token]), one.score) for one in some if one.score is not None]
                    for some in groups
                ]
            ),
        )
        for token, number in total.most_common(NUM_TOKENS)
    }


def _twins(groups: Sequence[Sequence[Placed]]) -> tuple[RolloutRef, ...]:
    best: list[Placed] = []
    for some in groups:
        common = Counter(one.said for one in some).most_common(1)
        if common and common[0][1] > max(len(best), 1):
            best = [one for one in some if one.said == common[0][0]]
    return _refs(best)
