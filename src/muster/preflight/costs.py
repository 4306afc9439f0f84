"""From measured waves and an update to the time and memory of the whole run.

The estimates hold for the policy as it is: a run whose completions grow takes longer.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from muster import checkpoint
from muster.config import minutes_of
from muster.evaluate import Evaluation
from muster.judge import raw_signal
from muster.memory import available_bytes, held_bytes
from muster.preflight.rehearsal import Sampled, Update, Wave
from muster.records import Group
from muster.runstate import Run
from muster.scaling import Paces

PROBE_BYTES = 64 * 2**20
"""Of weights that are written once, to learn how fast checkpoints are."""
_BY_TOKEN = ("old", "reference", "gate", "forward", "backward")
"""Phases of an update that grow with its tokens."""


class Pace(NamedTuple):
    """What sampling costs: so much for each pass over the model, and for each token in it."""

    pass_s: float
    token_s: float

    def seconds(self, passes: float, tokens: float) -> float:
        """Of so many passes and tokens."""
        return self.pass_s * passes + self.token_s * tokens


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the costs follow from."""

    sampled: Sampled
    update: Update | None
    start_s: float
    """Until the model was loaded and checked, imports left out."""
    load_s: float
    """Of the model alone."""
    byte_s: float
    """Of a byte of a checkpoint."""
    max_rows: int
    """Rollouts sampled side by side."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Time and memory of the run as it is configured, from measured rates."""

    start_s: float
    """Loading and checking."""
    sample_s: float
    """Of a step, on average, as the other two."""
    score_s: float
    update_s: float | None
    """None where none could be rehearsed."""
    eval_s: float
    """Of one evaluation."""
    num_evals: int
    save_s: float
    """Of one checkpoint."""
    num_saves: int
    export_s: float
    num_steps: int
    tokens_per_s: float
    """Completion tokens sampled in a second, in a step."""
    peak_bytes: int | None
    """The most that the run's process will hold on its device; None where the system doesn't say."""
    available_bytes: int
    """What it could hold at most."""
    paces: Paces | None
    """The units that the above is made of; None where no update could be rehearsed."""
    longest_tokens: float
    """Of a step's longest completion, on average."""
    step_s: float = field(init=False)
    total_s: float = field(init=False)
    """Of the whole run."""

    def __post_init__(self) -> None:
        """Adds up."""
        step_s = self.sample_s + self.score_s + (self.update_s or 0.0)
        around = self.eval_s * self.num_evals + self.save_s * self.num_saves + self.export_s
        object.__setattr__(self, "step_s", step_s)
        object.__setattr__(self, "total_s", self.start_s + step_s * self.num_steps + around)


def predict(run: Run, measured: Measured, *, save_every: int | str) -> Costs:
    """What the run will cost; checkpoints of better evaluations than all before are not foreseen."""
    groups, waves, update = measured.sampled.groups, measured.sampled.waves, measured.update
    pace = pace_of(waves)
    rollout_s = sum(wave.score_s for wave in waves) / sum(wave.num_rollouts for wave in waves)
    rollouts = run.plan.prompts_per_step * run.sampling.group_size
    shape = step_shape(groups, run.plan.prompts_per_step)
    sample_s = pace.seconds(shape.passes * math.ceil(rollouts / measured.max_rows), shape.tokens)
    rounds = _rounds(groups, run.plan.resample)
    steps = run.plan.num_steps
    device = run.policy.device
    costs = Costs(
        start_s=measured.start_s,
        sample_s=rounds * sample_s,
        score_s=rounds * rollout_s * rollouts,
        update_s=None if update is None else _update_seconds(run, groups, update),
        eval_s=_eval_seconds(run.evaluation, groups, pace, rollout_s, measured.max_rows),
        num_evals=0 if run.evaluation is None else sum(map(run.evaluation.is_due, range(steps + 1))),
        save_s=measured.byte_s * _saved_bytes(run, update),
        num_saves=math.ceil(steps / save_every) if isinstance(save_every, int) and save_every else 1,
        export_s=measured.byte_s * _trained_bytes(run) + measured.load_s,
        num_steps=steps,
        tokens_per_s=shape.completion_tokens / sample_s,
        peak_bytes=_peak_bytes(run, measured),
        available_bytes=available_bytes(device) + (held_bytes(device) or 0),
        paces=_paces(run, pace, rollout_s, update),
        longest_tokens=shape.passes,
    )
    minutes = minutes_of(save_every)
    return replace(costs, num_saves=1 + int(costs.total_s // (60 * minutes))) if minutes else costs


def _paces(run: Run, pace: Pace, reward_s: float, update: Update | None) -> Paces | None:
    """What was measured, as seconds of a pass, of tokens and of an optimizer's steps."""
    if update is None:
        return None
    return Paces(
        pass_s=pace.pass_s,
        token_s=pace.token_s,
        train_s=_token_seconds(run, update),
        optimizer_s=update.seconds.get("optimizer", 0.0),
        reward_s=reward_s,
    )


def pace_of(waves: Sequence[Wave]) -> Pace:
    """Least squares of the relative errors over the waves, neither cost below 0."""
    seconds = torch.tensor([wave.sample_s for wave in waves], dtype=torch.float64)
    work = torch.tensor([[wave.longest, wave.tokens] for wave in waves], dtype=torch.float64)
    work = work / seconds[:, None]
    ones = torch.ones(len(waves), 1, dtype=torch.float64)
    both = torch.linalg.lstsq(work, ones, driver="gelsd").solution[:, 0]
    if (both >= 0).all():
        return Pace(*both.tolist())
    alone = work.sum(dim=0) / work.square().sum(dim=0)
    errors = (work * alone - ones).square().sum(dim=0)
    return Pace(float(alone[0]), 0.0) if errors[0] < errors[1] else Pace(0.0, float(alone[1]))


class StepShape(NamedTuple):
    """What a step samples, on average."""

    passes: float
    """Tokens of its longest completion."""
    tokens: float
    """Of completions, and of each prompt once."""
    completion_tokens: float


def step_shape(groups: Sequence[Group], per_step: int) -> StepShape:
    """Of steps of so many prompts, from fewer or more groups."""
    steps = [groups[start : start + per_step] for start in range(0, len(groups), per_step)]
    whole = [step for step in steps if len(step) == len(steps[0])]
    longest = [max(_lengths(step)) for step in whole]
    completion_tokens = sum(_lengths(groups)) / len(groups) * per_step
    prompt_tokens = sum(len(group.prompt.ids) for group in groups) / len(groups) * per_step
    return StepShape(
        passes=sum(longest) / len(longest),
        tokens=completion_tokens + prompt_tokens,
        completion_tokens=completion_tokens,
    )


def heaviest(groups: Sequence[Group], per_step: int) -> list[Group]:
    """As many groups as a step has, those with the most tokens: the largest update there may be."""
    return sorted(groups, key=lambda group: sum(_lengths([group])), reverse=True)[:per_step]


def _lengths(groups: Sequence[Group]) -> list[int]:
    return [len(rollout.completion.ids) for group in groups for rollout in group.rollouts]


def _rounds(groups: Sequence[Group], resample: int) -> float:
    """How often a slot of a step is sampled: again for each group without signal, up to the bound."""
    silent = 1.0 - sum(raw_signal(groups)) / len(groups)
    return sum(silent**number for number in range(resample + 1))


def _update_seconds(run: Run, groups: Sequence[Group], update: Update) -> float:
    """Of a step on average: what grows with tokens for those that will take part, and the optimizer."""
    teaches_all = bool(run.objective.kl_coef or run.objective.entropy_coef)
    verdict = run.judge(groups)
    taught = 0
    for group, signal, counts in zip(groups, verdict.signal.tolist(), verdict.counts.tolist(), strict=True):
        lengths = [length for length, counted in zip(_lengths([group]), counts, strict=False) if counted]
        if lengths and (signal or teaches_all or run.plan.resample):
            taught += len(group.prompt.ids) + sum(lengths)
    tokens = taught / len(groups) * run.plan.prompts_per_step
    return _token_seconds(run, update) * tokens + update.seconds.get("optimizer", 0.0) * (tokens > 0)


def _token_seconds(run: Run, update: Update) -> float:
    """Of a token in an update, all passes over it together."""
    seconds = dict(update.seconds)
    if run.plan.sync_every > 1 and run.plan.minibatches * run.plan.passes == 1:
        # On the first step after a sync the sampler's weights are those being updated.
        seconds["old"] = seconds.get("old", 0.0) * (1 - 1 / run.plan.sync_every)
    return sum(seconds.get(phase, 0.0) for phase in _BY_TOKEN) / update.tokens


def _eval_seconds(
    evaluation: Evaluation | None, groups: Sequence[Group], pace: Pace, rollout_s: float, max_rows: int
) -> float:
    """Of one evaluation; completions that were cut are taken to run to its limit."""
    if evaluation is None:
        return 0.0
    limit = evaluation.sampling.max_tokens
    completions = [rollout.completion for group in groups for rollout in group.rollouts]
    lengths = [limit if c.is_truncated else min(len(c.ids), limit) for c in completions]
    rollouts = len(evaluation.items) * evaluation.sampling.group_size
    prompt_tokens = sum(len(item.ids) for item in evaluation.items)
    tokens = sum(lengths) / len(lengths) * rollouts + prompt_tokens
    return pace.seconds(max(lengths) * math.ceil(rollouts / max_rows), tokens) + rollout_s * rollouts


def _trained_bytes(run: Run) -> int:
    return sum(param.nbytes for _, param in run.policy.trainable())


def _saved_bytes(run: Run, update: Update | None) -> int:
    """Of a checkpoint: weights, optimizer, and where the sampler lags its weights."""
    weights = _trained_bytes(run)
    optimizer = 2 * weights if update is None else update.optimizer_bytes
    return weights + optimizer + (weights if run.plan.sync_every > 1 else 0)


def _peak_bytes(run: Run, measured: Measured) -> int | None:
    """The largest of: sampling beside the optimizer's state, the update, and reading the export back."""
    update = measured.update
    if update is None or update.peak_bytes is None or measured.sampled.peak_bytes is None:
        return None
    sampling = measured.sampled.peak_bytes + update.optimizer_bytes
    exporting = (update.held_bytes or 0) + sum(param.nbytes for param in run.policy.model.parameters())
    return max(sampling, update.peak_bytes, exporting)


def seconds_per_byte(weights: Mapping[str, Tensor], place: Path) -> float:
    """What a byte of a checkpoint costs, from writing some weights where the run will be; removed again."""
    some: dict[str, Tensor] = {}
    size = 0
    for name, tensor in sorted(weights.items(), key=lambda item: item[1].nbytes):
        if some and size + tensor.nbytes > PROBE_BYTES:
            break
        some[name] = tensor.detach()
        size += tensor.nbytes
    there = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.is_dir())
    with tempfile.TemporaryDirectory(dir=there, prefix=".muster-check-") as folder:
        start = time.perf_counter()
        checkpoint.save(
            Path(folder), 1, checkpoint.Checkpoint(weights=some, optimizer={}, old=None, state={})
        )
        return (time.perf_counter() - start) / size
