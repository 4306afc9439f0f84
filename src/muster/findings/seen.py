"""Facts about some groups: pass rates, signal, lengths, parts of the reward, failures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster.records import Completion, Group, Rollout
from muster.stats import limit_that_keeps, mean_of, no_signal_share

OTHER_SIZES = (4, 8, 16, 32, 64)
"""Group sizes for which the share of groups without signal is expected."""
SAMPLING_LIMIT, MODEL_LIMIT, TURN_LIMIT = "sampling.max_tokens", "model.max_tokens", "max_turn_tokens"
"""What completions are cut at: the last two with an environment alone, which states the last."""
KEPT = 0.95
"""Share of the completions that a limit is asked to keep whole."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The settings that the facts are weighed against."""

    group_size: int
    max_tokens: int
    weights: Mapping[str, float]
    """Factor of each reward, by name."""
    levels: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The values of graded rewards, by name."""
    max_failed_share: float = 0.5
    has_fixed_length: bool = False
    """Every completion runs to its limit on purpose."""
    max_turn_tokens: int | None = None
    """Longest turn that an environment allows; None without one, or without such a limit."""
    leaves_out_truncated: bool = False
    """Completions cut at their limit don't count in the loss."""

    @property
    def range(self) -> tuple[float, float] | None:
        """Least and greatest score, where every reward that counts is graded; else None."""
        counting = {name: weight for name, weight in self.weights.items() if weight}
        if not counting or not all(self.levels.get(name) for name in counting):
            return None
        ends = [sorted(weight * level for level in self.levels[name]) for name, weight in counting.items()]
        return sum(values[0] for values in ends), sum(values[-1] for values in ends)


@dataclass(frozen=True, kw_only=True)
class PartSeen:
    """What one reward gave."""

    weight: float
    mean: float
    lowest: float
    highest: float
    num_scored: int
    levels: Mapping[float, int] = field(default_factory=dict)
    """Completions at each level, where the reward is graded."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How completions end, in tokens."""

    mean: float | None
    """None without completions."""
    truncated_share: float
    """Completions that were cut at their limit."""
    cut_by: Mapping[str, int]
    """How many of them by which of the limits."""
    needed: int
    """The limit that keeps 95 % of the completions whole; where more were cut, the present one."""
    is_known: bool
    """False where more were cut: the limit needed is then at least `needed`, and nobody can say more."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What some groups show; shares are of the groups or rollouts named, from 0 to 1."""

    num_groups: int
    num_rollouts: int
    num_scored: int
    """Rollouts that have a score."""
    num_failed: int
    reasons: Mapping[str, int]
    """How often each reward failed for which reason."""
    lowest: float
    """The score of an answer that is all wrong: the least there can be, 0, or the least seen."""
    full: float
    """The full score: the greatest there can be; 1 where all are from 0 to 1; else the greatest seen."""
    scores: tuple[float, float] | None
    """Least and greatest score that was given; None for none."""
    pass_rates: tuple[float, ...]
    """By prompt, the share of its rollouts with the full score."""
    means: tuple[float, ...]
    """By prompt, its mean score."""
    num_judged: int
    """Groups with at least two scores: those that can have a signal."""
    num_right: int
    """Judged groups whose scores are all full."""
    num_wrong: int
    """Judged groups whose scores are all the lowest."""
    num_equal: int
    """Judged groups whose scores are all equal, the right and the wrong ones included."""
    expected: Mapping[int, float]
    """By group size, the expected share of groups without signal."""
    lengths: Lengths
    distinct_share: float
    """Different completions as a share of all, prompt by prompt."""
    parts: Mapping[str, PartSeen]
    """By reward name."""


def look(groups: Sequence[Group], setup: Setup) -> Seen:
    """The facts about these groups; groups of one rollout say nothing about signal."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    by_prompt = [values for group in groups if (values := scores_of(group))]
    values = [value for group in by_prompt for value in group]
    lowest, full = _range(values, setup)
    judged = [group for group in by_prompt if len(group) > 1]
    equal = [group[0] for group in judged if len(set(group)) == 1]
    failures = [
        f"{name} {why}" for rollout in rollouts for name, why in sorted(rollout.score.failures.items())
    ]
    return Seen(
        num_groups=len(groups),
        num_rollouts=len(rollouts),
        num_scored=len(values),
        num_failed=sum(rollout.score.is_failure for rollout in rollouts),
        reasons=dict(Counter(failures).most_common()),
        lowest=lowest,
        full=full,
        scores=(min(values), max(values)) if values else None,
        pass_rates=tuple(sum(value >= full for value in group) / len(group) for group in by_prompt),
        means=tuple(sum(group) / len(group) for group in by_prompt),
        num_judged=len(judged),
        num_right=sum(value >= full for value in equal),
        num_wrong=sum(value <= lowest for value in equal),
        num_equal=len(equal),
        expected={size: no_signal_share(judged, size) for size in OTHER_SIZES} if judged else {},
        lengths=_lengths(rollouts, setup),
        distinct_share=_distinct_share(groups),
        parts={
            name: part
            for name, weight in setup.weights.items()
            if (part := _part(name, weight, rollouts, setup))
        },
    )


def scores_of(group: Group) -> list[float]:
    """The scores that are numbers."""
    return [rollout.score.value for rollout in group.rollouts if rollout.score.value is not None]


def _range(values: Sequence[float], setup: Setup) -> tuple[float, float]:
    """The scores of an answer that is all wrong, and of one that is all right."""
    if setup.range is not None:
        return setup.range
    least, greatest = min(values, default=0.0), max(values, default=1.0)
    return min(least, 0.0), 1.0 if least >= 0 and greatest <= 1 else greatest


def _lengths(rollouts: Sequence[Rollout], setup: Setup) -> Lengths:
    lengths = [rollout.completion.num_emitted for rollout in rollouts]
    truncated = [rollout.completion for rollout in rollouts if rollout.completion.is_truncated]
    share = len(truncated) / max(len(rollouts), 1)
    knows = bool(lengths) and share <= 1 - KEPT
    return Lengths(
        mean=mean_of(lengths),
        truncated_share=share,
        cut_by=dict(Counter(_limit_met(completion, setup) for completion in truncated)),
        needed=limit_that_keeps(lengths, KEPT) if knows else setup.max_tokens,
        is_known=knows,
    )


def _limit_met(completion: Completion, setup: Setup) -> str:
    """Which limit the completion was cut at."""
    if completion.emitted is None or completion.num_emitted >= setup.max_tokens:
        return SAMPLING_LIMIT
    if setup.max_turn_tokens is not None and len(completion.turns[-1]) >= setup.max_turn_tokens:
        return TURN_LIMIT
    # Prompt, turns and what is between them left no room.
    return MODEL_LIMIT


def _distinct_share(groups: Sequence[Group]) -> float:
    counts = [(len({r.completion.ids for r in group.rollouts}), len(group.rollouts)) for group in groups]
    return sum(different for different, _ in counts) / max(sum(number for _, number in counts), 1)


def _part(name: str, weight: float, rollouts: Sequence[Rollout], setup: Setup) -> PartSeen | None:
    """What a reward gave; None where it never gave a number."""
    values = [value for rollout in rollouts if (value := rollout.score.parts.get(name)) is not None]
    if not values:
        return None
    return PartSeen(
        weight=weight,
        mean=sum(values) / len(values),
        lowest=min(values),
        highest=max(values),
        num_scored=len(values),
        levels={level: values.count(level) for level in setup.levels.get(name, ())},
    )
