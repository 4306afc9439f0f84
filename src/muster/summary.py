"""The metrics of a step, by TRL's names where it has one; None where there is no number."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from muster.algo import metrics as sums
from muster.episodes import episode_metrics
from muster.judge import Verdict
from muster.records import Group, Rollout
from muster.update import Updated

Metrics = dict[str, float | None]

Levels = Mapping[str, tuple[float, ...]]


def summarize(
    groups: Sequence[Group], verdict: Verdict, results: Sequence[Updated], levels: Levels
) -> Metrics:
    """All metrics of one step: what was sampled, how it was scored, what the updates did."""
    return {
        **completion_metrics(groups),
        **reward_metrics(groups, levels),
        "advantage/nonzero_share": _mean((verdict.advantages != 0)[verdict.counts].double().tolist()),
        **episode_metrics(groups),
        **_update_metrics(results),
    }


def completion_metrics(groups: Sequence[Group]) -> Metrics:
    """Lengths in tokens and how completions ended."""
    completions = [rollout.completion for group in groups for rollout in group.rollouts]
    lengths = [completion.num_emitted for completion in completions]
    ended = [completion.num_emitted for completion in completions if not completion.is_truncated]
    return {
        "num_completions": len(completions),
        "completions/mean_length": _mean(lengths),
        "completions/min_length": _of(min, lengths),
        "completions/max_length": _of(max, lengths),
        "completions/mean_terminated_length": _mean(ended),
        "completions/min_terminated_length": _of(min, ended),
        "completions/max_terminated_length": _of(max, ended),
        "completions/clipped_ratio": _mean([float(c.is_truncated) for c in completions]),
        "completions/num_distinct": len({completion.ids for completion in completions}),
    }


def count_tokens(groups: Sequence[Group]) -> int:
    """Tokens of the completions, each with its prompt."""
    return sum(
        len(group.prompt.ids) + len(rollout.completion.ids) for group in groups for rollout in group.rollouts
    )


def reward_metrics(groups: Sequence[Group], levels: Levels) -> Metrics:
    """Reward over the rollouts that have one, its spread within groups, each part, and failures."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    values = [_numbers(group.rollouts) for group in groups]
    spreads = [float(np.std(v, ddof=1)) for v in values if len(v) > 1]
    equal = [float(len(set(v)) <= 1) for v in values]
    names = sorted({name for rollout in rollouts for name in rollout.score.parts})
    metrics: Metrics = {
        "reward": _mean([value for group in values for value in group]),
        "reward_std": _mean(spreads),
        "frac_reward_zero_std": _mean(equal),
        "rollouts/failed": sum(rollout.score.is_failure for rollout in rollouts),
        "rollouts/abstained": sum(rollout.score.is_abstention for rollout in rollouts),
        "groups/shrunk_to_one": sum(
            len(v) == 1 and len(g.rollouts) > 1 for v, g in zip(values, groups, strict=True)
        ),
    }
    for name in names:
        metrics |= _part_metrics(name, rollouts, levels.get(name, ()))
    return metrics


def _part_metrics(name: str, rollouts: Sequence[Rollout], levels: Sequence[float]) -> Metrics:
    parts = [value for rollout in rollouts if (value := rollout.score.parts.get(name)) is not None]
    counts = Counter(parts)
    return {
        f"rewards/{name}/mean": _mean(parts),
        f"rewards/{name}/std": float(np.std(parts, ddof=1)) if len(parts) > 1 else None,
        **{f"rewards/{name}/count/{level:g}": counts[level] for level in levels},
    }


def _update_metrics(results: Sequence[Updated]) -> Metrics:
    stats: dict[str, sums.Metric] = {}
    for result in results:
        stats = sums.merge(stats, result.stats)
    return {
        # A skipped update would hide the others' numbers behind its NaN.
        "loss": _mean([result.loss for result in results if math.isfinite(result.loss)]),
        "grad_norm": _mean([result.grad_norm for result in results if math.isfinite(result.grad_norm)]),
        "updates": sum(result.stepped for result in results),
        "updates/skipped": sum(not result.stepped for result in results),
        **{name: _finite(value) for name, value in sums.values(stats).items()},
    }


def _numbers(rollouts: Sequence[Rollout]) -> list[float]:
    return [rollout.score.value for rollout in rollouts if rollout.score.value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _of(pick: Callable[[Sequence[int]], int], values: Sequence[int]) -> float | None:
    return pick(values) if values else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
