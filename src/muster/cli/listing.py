"""Runs as a list shows them: how far, how good, in which state, how old."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.targets import readable
from muster.cli.text import escape_text, number, sparkline
from muster.errors import CheckpointError
from muster.store import Line, read_config, read_events, read_index, state_of

CURVE_WIDTH = 16
_WIDE = 100
"""Columns from which on there is room for curves."""
_STYLES = {"running": "green", "failed": "red", "killed": "red", "stopped": "yellow"}


class Listed(NamedTuple):
    """A run in a list."""

    name: str
    folder: str
    state: str
    """A state that `muster.store.state_of` gives, or unreadable."""
    step: int
    num_steps: int | None
    """None where the configuration counts epochs."""
    rewards: tuple[float, ...]
    held_out: tuple[float, ...]
    """Held-out reward of each evaluation."""
    age_s: float
    """Seconds since something was written to it."""


def runs_in(folder: Path) -> list[Listed]:
    """The runs of a folder, the one that was last written to first."""
    return sorted((_listed(path.parent) for path in folder.glob("*/meta.json")), key=lambda run: run.age_s)


def _listed(folder: Path) -> Listed:
    """The run; where its files hold what no run wrote, it is unreadable and the others are still listed."""
    age_s = time.time() - max(path.stat().st_mtime for path in folder.glob("*.json*"))
    unreadable = Listed(folder.name, str(folder), "unreadable", 0, read_config(folder).steps, (), (), age_s)
    try:
        with readable(folder):
            index = read_index(folder)
            return unreadable._replace(
                state=state_of(folder, read_events(folder), age_s=age_s),
                step=int(index[-1]["step"]) if index else 0,
                rewards=_there(index, "reward"),
                held_out=_there(index, "eval_reward"),
            )
    except CheckpointError:
        return unreadable


def _there(index: Sequence[Line], name: str) -> tuple[float, ...]:
    return tuple(float(line[name]) for line in index if line.get(name) is not None)


def runs_table(runs: Sequence[Listed], *, has_curves: bool) -> Table:
    """One row per run."""
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("reward", no_wrap=True)
    if has_curves:
        table.add_column("curve", no_wrap=True)
    table.add_column("held-out", no_wrap=True)
    table.add_column("written", justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            escape_text(run.name),
            Text(run.state, style=_STYLES.get(run.state, "")),
            f"{run.step}/{run.num_steps}" if run.num_steps else str(run.step),
            first_to_last(run.rewards),
            *([sparkline(run.rewards, CURVE_WIDTH)] if has_curves else []),
            first_to_last(run.held_out),
            age(run.age_s),
        )
    return table


def first_to_last(values: Sequence[float]) -> str:
    """The first value and the last; a dash for none."""
    if len(values) < 2:
        return number(values[0] if values else None)
    return f"{number(values[0])} -> {number(values[-1])}"


def age(seconds: float) -> str:
    """How long ago, in the largest unit that fits."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "now"


def print_runs(folder: Path, console: Console) -> None:
    """Prints the runs of a folder."""
    runs = runs_in(folder)
    if not runs:
        console.print(Text(f"there are no runs in {escape_text(str(folder))}"))
        return
    console.print(runs_table(runs, has_curves=console.width >= _WIDE))


def runs_as_json(folder: Path) -> list[Mapping[str, object]]:
    """The runs of a folder as plain data."""
    return [run._asdict() for run in runs_in(folder)]
