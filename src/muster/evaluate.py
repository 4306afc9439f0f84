"""Held-out evaluation: the training settings on fixed random streams of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from muster.clock import Clock
from muster.engines.base import Sampling
from muster.episodes import episode_metrics
from muster.gather import Collector, Item
from muster.records import EvalReport, Group, StreamKey
from muster.stats import mean_interval, pass_at_k


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is held out, and when it is looked at. Never changes training."""

    items: Sequence[Item]
    sampling: Sampling
    seed: int
    every: int
    """Steps between evaluations; 0: at start and end only."""
    at_start: bool
    num_steps: int

    def is_due(self, step: int) -> bool:
        """Whether this step ends with an evaluation; step 0 is before the first update."""
        return is_due(step, every=self.every, at_start=self.at_start, num_steps=self.num_steps)

    def run(self, step: int, collector: Collector, clock: Clock) -> EvalReport:
        """Samples and grades every held-out prompt."""
        # Training steps count from 1, so streams of step 0 are free; they are the same at every
        # evaluation, so that two evaluations differ by the policy alone.
        keys = [StreamKey(self.seed, 0, slot, 0) for slot in range(len(self.items))]
        inner = Clock(lambda phase, done, total: clock.progress("eval", done, total))
        with clock.phase("eval"):
            groups = collector.collect(self.items, keys, self.sampling, inner, step=step)
        noted = collector.take_noted()
        metrics = noted.beside(metrics_of(groups), prefix="eval_")
        return EvalReport(step=step, groups=tuple(groups), metrics=metrics, extras=noted.extras)


def is_due(step: int, *, every: int, at_start: bool, num_steps: int) -> bool:
    """Whether a step ends with an evaluation: at start where wanted, every so many steps, and the last."""
    if step == 0:
        return at_start
    return step == num_steps or (every > 0 and step % every == 0)


def metrics_of(groups: Sequence[Group]) -> dict[str, float | None]:
    """`eval_reward` with its 95 % interval clustered by prompt, lengths, and pass@k where asked for."""
    values = [[r.score.value for r in group.rollouts if r.score.value is not None] for group in groups]
    scored = [group_values for group_values in values if group_values]
    completions = [rollout.completion for group in groups for rollout in group.rollouts]
    metrics: dict[str, float | None] = {
        "eval_reward": None,
        "eval_reward/low": None,
        "eval_reward/high": None,
    }
    if scored:
        interval = mean_interval(scored)
        metrics |= {
            "eval_reward": interval.mean,
            "eval_reward/low": interval.low,
            "eval_reward/high": interval.high,
        }
    metrics["eval_num_prompts"] = len(groups)
    metrics["eval_num_scored"] = sum(len(group_values) for group_values in scored)
    metrics["eval_completions/mean_length"] = sum(c.num_emitted for c in completions) / max(
        len(completions), 1
    )
    metrics["eval_completions/clipped_ratio"] = sum(c.is_truncated for c in completions) / max(
        len(completions), 1
    )
    for name in sorted({name for group in groups for r in group.rollouts for name in r.score.parts}):
        parts = [v for g in groups for r in g.rollouts if (v := r.score.parts.get(name)) is not None]
        metrics[f"eval_rewards/{name}/mean"] = sum(parts) / len(parts) if parts else None
    return metrics | episode_metrics(groups, "eval_") | _pass_rates(scored)


def _pass_rates(values: Sequence[Sequence[float]]) -> dict[str, float | None]:
    """pass@k for k = 1, 2, 4 ... up to the group size; a pass is a reward of at least 1."""
    size = min((len(group) for group in values), default=0)
    if size < 2:
        return {}
    rates: dict[str, float | None] = {}
    for k in (2**power for power in range(size.bit_length()) if 2**power <= size):
        solved = [pass_at_k(len(group), sum(value >= 1 for value in group), k) for group in values]
        rates[f"eval_pass@{k}"] = sum(solved) / len(solved)
    return rates
