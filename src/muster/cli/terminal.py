"""A run on the terminal: one line per step, a table every few steps, and on a terminal a live footer."""

import sys
from collections import deque
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from muster.cli.outcome import held_out_loss
from muster.cli.output import PatientConsole, log_line, print_line
from muster.cli.samples import step_table
from muster.cli.text import duration, escape_text, number, percent, sparkline
from muster.clock import BESIDE_STEP, step_seconds
from muster.config import Config
from muster.records import StepReport
from muster.redaction import redacted
from muster.stats import mean_of
from muster.store import to_json

CURVE_WIDTH = 12
NUM_LOSSES = 10
"""Steps that the running mean of the loss looks back over."""
NUM_REWARDS = 20
"""Completions that the running mean of the reward looks back over."""
MAX_LEVELS = 12
"""Of a reward with more different values no counts are shown."""

# What happens in a step beside sampling and scoring, and isn't the update either.
_NOT_UPDATE = BESIDE_STEP | {"sample", "environment", "score", "write"}


class History:
    """What the lines of later steps say about earlier ones."""

    def __init__(self, config: Config) -> None:
        self._run = config.run
        self.rewards: list[float | None] = []
        self.losses: deque[float | None] = deque(maxlen=NUM_LOSSES)
        self.last_rewards: deque[float] = deque(maxlen=NUM_REWARDS)
        self.seconds: deque[float] = deque(maxlen=NUM_LOSSES)
        self.step = 0
        self.share_done: float | None = None
        self.levels: dict[str, set[str]] = {}

    def add(self, report: StepReport) -> None:
        """Takes a step in."""
        self.step = report.step
        self.rewards.append(report.metrics.get("reward"))
        self.losses.append(report.metrics.get("loss"))
        scores = [rollout.score.value for group in report.groups for rollout in group.rollouts]
        self.last_rewards.extend(score for score in scores if score is not None)
        self.seconds.append(step_seconds(report.timings))
        epoch = report.metrics.get("epoch")
        if self._run.steps:
            self.share_done = report.step / self._run.steps
        elif self._run.epochs and epoch:
            self.share_done = epoch / self._run.epochs
        for reward, counts in level_counts(report.metrics).items():
            self.levels.setdefault(reward, set()).update(counts)

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the last steps; None before there is one."""
        if not self.share_done or not self.seconds:
            return None
        pace = sum(self.seconds) / len(self.seconds)
        return pace * self.step * max(0.0, 1.0 / self.share_done - 1.0)


class TrainView:
    """Prints a run as it goes; steps on stdout, what is said around them on stderr."""

    def __init__(
        self,
        config: Config,
        console: Console | None = None,
        log: Console | None = None,
        *,
        table_every: int = 5,
    ) -> None:
        """`table_every` is steps between tables of samples; 0 for none."""
        self._config, self._table_every = config, table_every
        self._console = console or PatientConsole()
        self._log = log or PatientConsole(stderr=True)
        self._history = History(config)
        self._phase = ("load", 0, 0)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # What a reward prints is lifted above the footer, unless it goes to a file.
            self._live = Live(
                console=self._console,
                get_renderable=self._footer,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line of log."""
        # Beside a live footer, two consoles on one terminal would write over each other.
        console = self._console if self._live and self._log.is_terminal else self._log
        console.print(Text(escape_text(redacted(text)), style="dim"), soft_wrap=True)

    def progress(self, phase: str, done: int, total: int) -> None:
        """How far the phase is, for the footer."""
        self._phase = (phase, done, total)

    def show(self, report: StepReport) -> None:
        """Prints a step: its line, its levels, its warnings, its evaluation, and now and then samples."""
        if report.groups:
            self._history.add(report)
            self._print(step_line(report, self._history, self._config.run.steps))
            for line in level_lines(report, self._history):
                self._print(line)
        for warning in report.warnings:
            self.say(f"step {report.step}: {warning}")
        if report.eval:
            self._print(eval_line(report.step, report.eval.metrics))
        every = self._table_every
        if every > 0 and report.groups and report.step % every == 0:
            self._console.print(step_table(report))

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def _footer(self) -> Text:
        phase, done, total = self._phase
        parts = [f"{phase} {done}/{total}" if total else phase]
        history = self._history
        if history.step:
            parts.append(f"loss {number(mean_of(list(history.losses)))} (last {NUM_LOSSES} steps)")
            if history.last_rewards:
                rewards = number(mean_of(list(history.last_rewards)))
                parts.append(f"reward {rewards} (last {NUM_REWARDS} completions)")
        if history.seconds_left is not None:
            parts.append(f"{duration(history.seconds_left)} left")
        return Text(" · ".join(parts), style="cyan", no_wrap=True, overflow="ellipsis")


class JsonView:
    """Prints a run as JSON lines, as they stand in its metrics."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """A line of log, on stderr."""
        log_line(text)

    def progress(self, phase: str, done: int, total: int) -> None:
        """Nobody watches."""

    def show(self, report: StepReport) -> None:
        """The step's metrics as one line."""
        held_out = report.eval.metrics if report.eval else {}
        print_line(to_json({"step": report.step, **report.metrics, **held_out}))


class SilentView:
    """Shows nothing: one process of several speaks for all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Says nothing."""

    def progress(self, phase: str, done: int, total: int) -> None:
        """Shows nothing."""

    def show(self, report: StepReport) -> None:
        """Shows nothing."""


def step_line(report: StepReport, history: History, num_steps: int | None) -> str:
    """All numbers of a step that a person follows, on one line."""
    metrics = report.metrics
    total = f"/{num_steps}" if num_steps else ""
    parts = [
        f"step {report.step:>{len(str(num_steps or 0))}}{total}",
        _lead(metrics, history),
        *_shares(metrics),
        *(f"{label} {number(metrics[key])}" for label, key in _SHOWN.items() if metrics.get(key) is not None),
        *_speed(report),
    ]
    if history.seconds_left is not None:
        parts.append(f"{duration(history.seconds_left)} left")
    return "  ".join(parts)


def _lead(metrics: Mapping[str, float | None], history: History) -> str:
    """What a run is about, with its curve: the reward or, where answers are learned, their loss."""
    if "reward" in metrics:
        return f"reward {number(metrics['reward'])} {sparkline(history.rewards, CURVE_WIDTH)}"
    return f"loss {number(metrics.get('loss'))} {sparkline(list(history.losses), CURVE_WIDTH)}"


_SHOWN = {
    "accuracy": "mean_token_accuracy",
    "entropy": "entropy",
    "kl": "kl",
    "clip": "clip_ratio/region_mean",
    "grad": "grad_norm",
}


def _shares(metrics: Mapping[str, float | None]) -> list[str]:
    """Groups whose rewards differ, length, and completions cut at the limit."""
    equal, length = metrics.get("frac_reward_zero_std"), metrics.get("completions/mean_length")
    cut = metrics.get("completions/clipped_ratio")
    parts = [f"mixed {percent(1 - equal)}"] if equal is not None else []
    if length is not None:
        parts.append(f"length {length:.0f}" + (f" ({percent(cut)} cut)" if cut is not None else ""))
    return parts


def _speed(report: StepReport) -> list[str]:
    """Seconds of the step and of its phases, and completion tokens per second."""
    seconds = report.timings
    update = sum(value for phase, value in seconds.items() if phase not in _NOT_UPDATE)
    sample = seconds.get("sample", 0.0) + seconds.get("environment", 0.0)
    score = seconds.get("score", 0.0)
    total = sample + score + update
    if not total:
        return []
    tokens = sum(rollout.completion.num_emitted for group in report.groups for rollout in group.rollouts)
    phases = f" (sample {sample:.1f} score {score:.1f} update {update:.1f})" if sample else ""
    return [f"{total:.1f} s{phases}", f"{tokens / total:.0f} tok/s"]


def level_counts(metrics: Mapping[str, float | None]) -> dict[str, dict[str, int]]:
    """How many completions reached each level, by reward."""
    counts: dict[str, dict[str, int]] = {}
    for key, value in metrics.items():
        reward, found, level = key.removeprefix("rewards/").rpartition("/count/")
        if found and key.startswith("rewards/") and value is not None:
            counts.setdefault(reward, {})[level] = int(value)
    return counts


def level_lines(report: StepReport, history: History) -> list[str]:
    """Counts per level of each reward that has few levels, those seen before included."""
    lines: list[str] = []
    for reward, counts in level_counts(report.metrics).items():
        levels = sorted(history.levels[reward], key=float)
        if len(levels) <= MAX_LEVELS:
            shown = "  ".join(f"{level}: {counts.get(level, 0)}" for level in levels)
            lines.append(f"  {escape_text(reward)}  {shown}")
    return lines


def eval_line(step: int, metrics: Mapping[str, float | None]) -> str:
    """Held-out reward with its interval or, of given answers, their loss, on one line."""
    if "eval_reward" not in metrics and "eval_loss" in metrics:
        return f"held-out loss at step {step}: {held_out_loss(metrics)}"
    low, high = metrics.get("eval_reward/low"), metrics.get("eval_reward/high")
    interval = f" ({number(low)} to {number(high)})" if low is not None else ""
    return f"held-out reward at step {step}: {number(metrics.get('eval_reward'))}{interval}"
