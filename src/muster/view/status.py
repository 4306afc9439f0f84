"""How a run is: going or over, how far, how well, how fast."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from muster.store import Line, State
from muster.view.curves import TOKENS_PER_SECOND, number_of, timing_numbers

_PACE = 10
"""Steps whose time says how long the rest takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run set out to do."""

    steps: int | None
    epochs: float | None = None


def status_of(
    lines: Sequence[Line], timings: Sequence[Line], state: State | None, plan: Plan, age_s: float
) -> Line:
    """State, step, seconds left, reward and how it changed, tokens per second, held-out reward."""
    last = lines[-1] if lines else {}
    pace, step = pace_of(timings), number_of(last.get("step")) or 0
    share = _share_done(last, plan, step)
    left = pace * step * (1 / share - 1) if pace and share and state == "running" else None
    return {
        "state": state or "unknown",
        "age_s": age_s,
        "step": step,
        "steps": plan.steps,
        "seconds_left": left,
        **reward_change([number_of(line.get("reward")) for line in lines]),
        "tokens_per_second": _mean([timing_numbers(line)[TOKENS_PER_SECOND] for line in timings[-_PACE:]]),
        "held_out": held_out(lines),
        "loss": answers_loss(lines),
    }


def pace_of(timings: Sequence[Line]) -> float | None:
    """Seconds of a step, evaluation and saving included, over the last ones; None where none was timed."""
    return _mean([_seconds(line) for line in timings[-_PACE:]])


def _seconds(line: Line) -> float | None:
    seconds = line.get("seconds")
    numbers = [number_of(value) for value in seconds.values()] if isinstance(seconds, dict) else []
    return math.fsum(number for number in numbers if number is not None) or None


def _share_done(last: Line, plan: Plan, step: float) -> float | None:
    if plan.steps:
        return min(step / plan.steps, 1.0)
    epoch = number_of(last.get("epoch"))
    return min(epoch / plan.epochs, 1.0) if plan.epochs and epoch else None


def reward_change(rewards: Sequence[float | None]) -> Line:
    """The last reward, and how the mean of the last steps differs from that of as many first ones."""
    there = [reward for reward in rewards if reward is not None]
    if not there:
        return {"reward": None, "change": None, "change_steps": 0}
    some = max(1, min(10, len(there) // 4))
    change = sum(there[-some:]) / some - sum(there[:some]) / some if len(there) > 1 else None
    return {"reward": there[-1], "change": change, "change_steps": some}


def held_out(lines: Sequence[Line]) -> list[Line]:
    """The first and the last evaluation: step, mean and interval."""
    found = [line for line in lines if number_of(line.get("eval_reward")) is not None]
    ends = [found[0], found[-1]] if len(found) > 1 else found
    names = {"step": "step", "mean": "eval_reward", "low": "eval_reward/low", "high": "eval_reward/high"}
    return [{name: number_of(line.get(key)) for name, key in names.items()} for line in ends]


def answers_loss(lines: Sequence[Line]) -> Line | None:
    """The last loss of a warm start, and the first and last held-out one; None where answers are sampled."""
    if not lines or "reward" in lines[-1] or number_of(lines[-1].get("mean_token_accuracy")) is None:
        return None
    held_out = [value for line in lines if (value := number_of(line.get("eval_loss"))) is not None]
    ends = (held_out[0], held_out[-1]) if held_out else (None, None)
    return {"last": number_of(lines[-1].get("loss")), "held_out_first": ends[0], "held_out": ends[1]}


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def spark(values: Sequence[float | None], width: int = 40) -> list[float | None]:
    """So many means of neighbouring values: a curve for a list."""
    if len(values) <= width:
        return list(values)
    edges = [round(place * len(values) / width) for place in range(width + 1)]
    return [_mean(values[low:high]) for low, high in pairwise(edges)]
