"""How a run is: going or over, how far, how well, how fast."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from muster.store import STATES, Line
from muster.view.curves import TOKENS_PER_SECOND, number_of, timing_numbers

ENDED = {"end": "finished", "stopped": "stopped", "failure": "failed"}
_PACE = 10
"""Steps whose time says how long the rest takes."""
_SILENT_S = 300.0
"""A run that wrote nothing for this long, and for many of its steps, may have been killed."""
_SILENT_STEPS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run set out to do."""

    steps: int | None
    epochs: float | None = None


def status_of(
    lines: Sequence[Line], timings: Sequence[Line], events: Sequence[Line], plan: Plan, age_s: float
) -> Line:
    """State, step, seconds left, reward and how it changed, tokens per second, held-out reward."""
    last = lines[-1] if lines else {}
    seconds = [step_seconds(line) for line in timings[-_PACE:]]
    pace = [value for value in seconds if value]
    step = number_of(last.get("step")) or 0
    state = state_of(events, age_s, sum(pace) / len(pace) if pace else None)
    share = _share_done(last, plan, step)
    left = sum(pace) / len(pace) * step * (1 / share - 1) if pace and share and state == "running" else None
    return {
        "state": state,
        "age_s": age_s,
        "step": step,
        "steps": plan.steps,
        "seconds_left": left,
        **reward_change([number_of(line.get("reward")) for line in lines]),
        "tokens_per_second": _mean([timing_numbers(line)[TOKENS_PER_SECOND] for line in timings[-_PACE:]]),
        "held_out": held_out(lines),
    }


def state_of(events: Sequence[Line], age_s: float, pace_s: float | None) -> str:
    """`running`, `silent` (no word for long), `finished`, `stopped`, `failed`; `unknown` without events."""
    states = [str(event.get("kind")) for event in events if event.get("kind") in STATES]
    if not states:
        return "unknown"
    if states[-1] in ENDED:
        return ENDED[states[-1]]
    return "silent" if age_s > max(_SILENT_S, _SILENT_STEPS * (pace_s or 0.0)) else "running"


def step_seconds(line: Line) -> float | None:
    """Seconds of a step, evaluation and saving included; None where nothing was timed."""
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


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def spark(values: Sequence[float | None], width: int = 40) -> list[float | None]:
    """So many means of neighbouring values: a curve for a list."""
    if len(values) <= width:
        return list(values)
    edges = [round(place * len(values) / width) for place in range(width + 1)]
    return [_mean(values[low:high]) for low, high in pairwise(edges)]
