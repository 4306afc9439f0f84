"""A run's folder from Python: read when it is asked for, while the run is going on, too."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from muster.doctor import Finding
from muster.errors import CheckpointError, ConfigError, MusterError
from muster.escaping import escape_text
from muster.nearest import did_you_mean
from muster.notebook.card import Card, state_line
from muster.notebook.drawing import Drawing, draw
from muster.notebook.figures import RunFigure, figure_of
from muster.notebook.panels import Columns, NamedColumns, chosen_panels
from muster.notebook.samples import Samples, best_and_worst
from muster.notebook.tables import LIGHT, TOKENS, frame, joined, numbers_table, rollouts_table, rows_table
from muster.store import Line, eval_file, read_config, read_events, rollouts_file
from muster.view.examining import ODD, examined
from muster.view.run_files import RunFiles
from muster.view.run_view import RunView
from muster.view.sources import Source, find_sources
from muster.view.tables import read_columns

if TYPE_CHECKING:
    from pandas import DataFrame

RUNS = Path("runs")
"""Where a run that is given by its name is looked for."""

Steps = int | Iterable[int] | None
"""One step, some (a range), or None."""


def open_run(path: str | Path) -> "OpenRun":
    """The run of this name or folder: Muster's, TRL's output, or a plain `metrics.jsonl`.

    Works while the run is being written. Raises ConfigError where there is no run.
    """
    for place in (Path(path), RUNS / path):
        found = find_sources([place])
        if len(found) == 1 and found[0].folder == place.absolute():
            return OpenRun(found[0])
    inside = find_sources([Path(path)])
    names = [source.name for source in inside or find_sources([RUNS])]
    there = f" Runs in {path if inside else RUNS}: {', '.join(names)}." if names else ""
    raise ConfigError(
        f"{path} is no run: neither it nor {RUNS / path} holds a meta.json, a trainer_state.json or a "
        f"metrics.jsonl.{did_you_mean(str(path), names)}{there}"
    )


class OpenRun:
    """One run on disk. Every call reads what is there now; of rollouts, only the steps that are asked for."""

    def __init__(self, source: Source) -> None:
        """For `open_run` to call."""
        self._source = source
        self._files = RunFiles(source)
        self._view = RunView(source)
        self.name = source.name
        self.folder = source.folder
        self.kind = source.kind
        """Who wrote it: `muster`, `trl`, or `metrics` for a plain file of metrics."""

    @property
    def steps(self) -> list[int]:
        """The steps whose rollouts are on disk."""
        return self._files.steps()

    @property
    def status(self) -> Mapping[str, object]:
        """State, step, seconds left, reward and its change, tokens per second, held-out reward."""
        status = self._view.info()["status"]
        assert isinstance(status, dict)
        return status

    @property
    def config(self) -> dict[str, Line]:
        """The run's settings by section; empty where it has none."""
        stored = read_config(self.folder)
        return {name: stored.table(name) for name in stored.tables}

    def metrics(self) -> pa.Table:
        """A row per step: every number of its metrics, seconds by phase, shares of groups by their signal."""
        return numbers_table(self._columns())

    def metrics_frame(self) -> "DataFrame":
        """The same as a pandas DataFrame, by step."""
        return frame(self.metrics()).set_index("step")

    def evaluations(self) -> pa.Table:
        """A row per evaluation: the held-out numbers."""
        table = self.metrics()
        names = [name for name in table.column_names if name == "step" or name.startswith("eval_")]
        rows = table.select(names)
        measured = [rows[name].to_pylist() for name in ("eval_reward", "eval_loss") if name in names]
        if not measured:
            return rows.slice(0, 0)
        return rows.filter(pa.array([any(value is not None for value in row) for row in zip(*measured)]))

    def evaluations_frame(self) -> "DataFrame":
        """The same as a pandas DataFrame, by step."""
        return frame(self.evaluations()).set_index("step")

    def events(self) -> list[Line]:
        """What happened, in order: start, warnings, findings, end."""
        return read_events(self.folder)

    def findings(self) -> list[Finding]:
        """What the doctor finds now, the most important first; warns of steps that it can't read."""
        looked = examined(self._source)
        for reason in looked.course.unread:
            warnings.warn(f"left out: {reason}", stacklevel=2)
        return list(looked.findings)

    def rollouts(self, steps: Steps = None, *, held_out: bool = False, tokens: bool = False) -> pa.Table:
        """A row per rollout of a step, or of several; without steps, of the last.

        The columns are those of the run folder, with `step`, and a `rewards/NAME` for each reward; what there
        is per token comes with `tokens`. `held_out` takes the completions of evaluations. A step that can't
        be read raises CheckpointError where it is the one asked for; of several it is left out, with a
        warning that names it. For all of a long run, go through `each_step`.
        """
        if steps is None:
            there = self._files.steps(held_out=held_out)
            steps = there[-1:]
        if isinstance(steps, int):
            return _step_table(self._files, steps, held_out=held_out, tokens=tokens)
        return joined(list(self.each_step(steps, held_out=held_out, tokens=tokens)))

    def rollouts_frame(
        self, steps: Steps = None, *, held_out: bool = False, tokens: bool = False
    ) -> "DataFrame":
        """The same as a pandas DataFrame."""
        return frame(self.rollouts(steps, held_out=held_out, tokens=tokens))

    def each_step(
        self, steps: Iterable[int] | None = None, *, held_out: bool = False, tokens: bool = False
    ) -> Iterator[pa.Table]:
        """The rollouts of one step after the other, each read when it is its turn; without steps, of all.

        Steps without rollouts are passed over; one that can't be read is left out, with a warning.
        """
        there = self._files.steps(held_out=held_out)
        wanted = there if steps is None else sorted(set(steps) & set(there))
        for step in wanted:
            try:
                table = _step_table(self._files, step, held_out=held_out, tokens=tokens)
            except CheckpointError as error:
                warnings.warn(f"step {step} is left out: {error}", stacklevel=2)
                continue
            yield table

    def samples(self, step: int | None = None, count: int = 4) -> Samples:
        """The best and the worst rollouts of a step; without one, of the last."""
        there = self.steps
        if step is None and not there:
            raise ConfigError(f"{self.folder} holds no samples yet.")
        step = there[-1] if step is None else step
        return best_and_worst(step, self._files.rows(step), count)

    def plot(self, *names: str, beside: Sequence["OpenRun"] = (), smooth: int = 1) -> RunFigure:
        """The inspector's curves as a plotly figure: those named, or all there are.

        Names are `reward`, `held-out`, `parts`, `groups`, `length`, `truncated`, `entropy`, `kl`, `mismatch`,
        `clip`, `gradient`, `rate`, `time`, `speed`, `loss`; of a warm start `held-out-loss` and `accuracy`;
        or any key of the metrics. `beside` puts other runs on the same axes. Each value is the mean of the
        last `smooth` steps.
        """
        runs = self._charted(beside)
        chosen = chosen_panels(names, runs)
        return figure_of(chosen, runs, draw(chosen, runs, smooth), smooth)

    def draw(self, *names: str, beside: Sequence["OpenRun"] = (), smooth: int = 1) -> Drawing:
        """The same curves as a static picture, which every viewer of notebooks shows."""
        runs = self._charted(beside)
        return draw(chosen_panels(names, runs), runs, smooth)

    def __repr__(self) -> str:
        try:
            said = state_line(self.status)
        except (MusterError, OSError, *ODD) as error:
            said = f"can't be read: {error}"
        return f"OpenRun({escape_text(self.name)!r}): {said}"

    def _repr_html_(self) -> str:
        """A card: state, key numbers, small curves, findings."""
        try:
            return _card(self._view, self._columns()).html()
        except (MusterError, OSError, *ODD) as error:
            return Card(self.name, {}, NamedColumns(self.name, {}), [f"can't be read: {error}"]).html()

    def _columns(self) -> dict[str, list[float | None]]:
        return self._view.curves(0, -1)["columns"]

    def _charted(self, beside: Sequence["OpenRun"]) -> list[NamedColumns]:
        return [NamedColumns(run.name, run._columns()) for run in (self, *beside)]


def _step_table(files: RunFiles, step: int, *, held_out: bool, tokens: bool) -> pa.Table:
    """The rollouts of a step, of whatever trainer."""
    source = files.source
    if source.kind == "trl":
        return rollouts_table(step, rows_table(files.rows(step, held_out=held_out)), tokens=tokens)
    path = (eval_file if held_out else rollouts_file)(source.folder, step)
    if not path.is_file():
        there = files.steps(held_out=held_out)
        steps = f"{there[0]} to {there[-1]}" if there else "none"
        raise ConfigError(f"{path.parent} holds no step {step}; steps there: {steps}.")
    columns = (*LIGHT, *(TOKENS if tokens else ("completion_ids", "emitted")))
    return rollouts_table(step, read_columns(path, columns), tokens=tokens)


def _card(view: RunView, columns: Columns) -> Card:
    """The run's card, its findings as they were told, and how much of it can't be read."""
    info, name = view.info(), view.source.name
    found = [f"{entry['name']}: {entry['text']}" for entry in info["findings"]]
    broken = [f"{info['num_broken']} broken lines are left out"] if info["num_broken"] else []
    return Card(name, info["status"], NamedColumns(name, columns), [*found[:8], *broken])
