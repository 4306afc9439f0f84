"""A run folder as a reader sees it on a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.findings import known_findings, print_headlines
from muster.cli.outcome import print_outcome
from muster.cli.output import PatientConsole
from muster.cli.samples import answers_table, good_and_bad, group_table, is_given, rollouts_of, samples_table
from muster.cli.text import escape_text, number, percent, sparkline
from muster.clock import BESIDE_STEP
from muster.errors import ConfigError
from muster.store import (
    Line,
    Rollouts,
    read_events,
    read_meta,
    read_metrics,
    read_rollouts,
    read_timings,
    rollout_steps,
    state_of,
)

MAX_CURVE, MIN_CURVE = 40, 8
_BESIDE_CURVE = 72
"""Columns of a table of metrics that its curves leave to the rest."""
SHOWN = (
    "reward",
    "eval_reward",
    "eval_loss",
    "mean_token_accuracy",
    "eval_mean_token_accuracy",
    "reward_std",
    "frac_reward_zero_std",
    "completions/mean_length",
    "completions/clipped_ratio",
    "entropy",
    "kl",
    "sampling/mismatch",
    "clip_ratio/region_mean",
    "loss",
    "grad_norm",
    "learning_rate",
)
"""The metrics of the table, where the run has them; each reward's mean comes after them."""
PHASES = (
    "sample",
    "environment",
    "score",
    "reference",
    "old",
    "gate",
    "forward",
    "backward",
    "optimizer",
    "sync",
    "write",
    "save",
    "eval",
)
"""Of a step, in its order."""
_MAX_WARNINGS = 5


def print_run(folder: Path) -> None:
    """Prints the whole run: what it is, its curves, its last samples, what it has come to."""
    console = PatientConsole()
    metrics, events = read_metrics(folder), read_events(folder)
    console.print(_head(folder, metrics, events))
    console.print(metrics_table(metrics, max(MIN_CURVE, min(MAX_CURVE, console.width - _BESIDE_CURVE))))
    print_headlines(known_findings(folder), folder, console)
    if timings := read_timings(folder):
        console.print(timings_table(timings))
    for event in [event for event in events if event.get("kind") == "warning"][-_MAX_WARNINGS:]:
        text = f"step {event.get('step')}: {event.get('text')}"
        console.print(Text(escape_text(text), style="yellow"), soft_wrap=True)
    steps = rollout_steps(folder)
    if steps:
        print_step(folder, steps[-1], console)
    print_outcome(folder, console)


def _head(folder: Path, metrics: Sequence[Line], events: Sequence[Line]) -> Text:
    """One paragraph: the run's name, when it started, how it is, and the command."""
    meta = read_meta(folder)
    seconds = sum(sum(line["seconds"].values()) for line in read_timings(folder))
    step = metrics[-1]["step"] if metrics else 0
    command = " ".join(str(part) for part in meta.get("command", []))
    return Text.assemble(
        (escape_text(folder.name), "bold"),
        f"  step {step}, {state_of(folder, events)}, {seconds:.0f} s in steps\n",
        (f"started {escape_text(str(meta.get('started', '')))} with: {escape_text(command)}", "dim"),
    )


def metrics_table(lines: Sequence[Line], curve_width: int) -> Table:
    """One row per metric: first, last, least, greatest, and the curve."""
    table = Table(box=None, pad_edge=False)
    table.add_column("metric", overflow="fold")
    for name in ("first", "last", "min", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("curve", no_wrap=True)
    names = {name: None for line in lines for name in line}
    means = [name for name in names if name.startswith("rewards/") and name.endswith("/mean")]
    for name in (*SHOWN, *means):
        values = [line.get(name) for line in lines if name in line]
        there = [value for value in values if value is not None]
        if there:
            row = (there[0], there[-1], min(there), max(there))
            curve = sparkline(values, curve_width)
            table.add_row(escape_text(name), *(number(value) for value in row), curve)
    return table


def timings_table(lines: Sequence[Line]) -> Table:
    """One row per phase, in the order of a step: seconds in all and a step, share, and tokens per second.

    Tokens are those of the completions of the steps that had the phase.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("phase")
    for name in ("seconds", "a step", "share", "tokens/s"):
        table.add_column(name, justify="right")
    names = {name: None for line in lines for name in line["seconds"]}
    whole = sum(sum(line["seconds"].values()) for line in lines)
    steps = max(sum(line["tokens"] > 0 for line in lines), 1)
    for name in sorted(names, key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES)):
        there = [line for line in lines if line["seconds"].get(name)]
        seconds = sum(line["seconds"][name] for line in there)
        tokens = sum(line["tokens"] for line in there)
        speed = f"{tokens / seconds:.0f}" if seconds and tokens and name not in BESIDE_STEP else ""
        share = percent(seconds / whole) if whole else ""
        table.add_row(escape_text(name), number(seconds), number(seconds / steps), share, speed)
    return table


def print_step(folder: Path, step: int, console: Console | None = None) -> None:
    """Prints the step's groups in a line each, and its best and worst samples."""
    console = console or PatientConsole()
    stored = read_rollouts(folder, step)
    if is_given(stored.groups):
        console.print(answers_table(stored.groups, stored.traces, f"step {step}: answers"))
        return
    table = Table(box=None, pad_edge=False, title=Text(f"groups of step {step}"), title_justify="left")
    for name in ("group", "sample", "rewards"):
        table.add_column(name)
    for place, group in enumerate(stored.groups):
        rewards = " ".join(number(rollout.score.value) for rollout in group.rollouts)
        table.add_row(str(place), escape_text(group.sample.id), rewards)
    console.print(table)
    seen = good_and_bad(rollouts_of(stored.groups, stored.traces))
    console.print(samples_table(seen, f"step {step}: samples"))


def print_group(folder: Path, step: int, place: int) -> None:
    """Prints every rollout of a group."""
    stored = read_rollouts(folder, step)
    _refuse_missing(stored, step, place)
    PatientConsole().print(group_table(stored.groups[place], stored.traces[place] if stored.traces else ()))


def _refuse_missing(stored: Rollouts, step: int, place: int) -> None:
    if not 0 <= place < len(stored.groups):
        raise ConfigError(f"--group is {place}; step {step} has groups 0 to {len(stored.groups) - 1}.")


def run_as_json(folder: Path, step: int | None, place: int | None) -> Mapping[str, object]:
    """The run, or the rollouts of a step or of one of its groups, as plain data."""
    if step is None:
        return {
            "folder": str(folder),
            "meta": read_meta(folder),
            "metrics": read_metrics(folder),
            "timings": read_timings(folder),
            "events": read_events(folder),
            "findings": list(known_findings(folder).found),
        }
    stored = read_rollouts(folder, step)
    if place is not None:
        _refuse_missing(stored, step, place)
    chosen = range(len(stored.groups)) if place is None else [place]
    return {"step": step, "groups": [_group_as_json(stored, one) for one in chosen]}


def _group_as_json(stored: Rollouts, place: int) -> Mapping[str, object]:
    group = stored.groups[place]
    return {
        "id": group.id,
        "sample": group.sample.id,
        "prompt": group.prompt_text,
        "rollouts": [
            {
                "text": rollout.text,
                "reward": rollout.score.value,
                "parts": rollout.score.parts,
                "failures": rollout.score.failures,
                "advantage": stored.traces[place][index].advantage if stored.traces else None,
                "finish_reason": rollout.completion.finish_reason,
                "tokens": rollout.completion.num_emitted,
                **({} if rollout.episode is None else {"episode": asdict(rollout.episode)}),
            }
            for index, rollout in enumerate(group.rollouts)
        ],
    }
