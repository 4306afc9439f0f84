"""A run's folder as rows and lines, the same for every writer; only what is asked for is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from muster.errors import ConfigError
from muster.store import (
    EVENTS,
    GROUPS,
    INDEX,
    METRICS,
    TIMINGS,
    Line,
    eval_file,
    eval_steps,
    rollout_steps,
    rollouts_file,
)
from muster.view import foreign
from muster.view.growing import GrowingLines, regular
from muster.view.pieces import find_tokenizer, tokenizer_file
from muster.view.prompts import OpenedGroups, PromptHistory
from muster.view.sources import Source
from muster.view.tables import Cache, light_rows, read_columns, row_of


class Records(Protocol):
    """Where the lines of a run's steps come from."""

    @property
    def generation(self) -> int:
        """Changes where earlier lines no longer hold."""
        ...

    @property
    def modified(self) -> float:
        """When something was last written, in seconds since 1970."""
        ...

    def look(self) -> Sequence[Line]:
        """A line per step so far."""
        ...


class RunFiles:
    """The files of one run, with what was read of them lately; not for several threads at once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.records = _records(source)
        self.timings = GrowingLines(source.folder / TIMINGS)
        self.events = GrowingLines(source.folder / EVENTS, _without_extras)
        self._index = GrowingLines(source.folder / INDEX, _brief)
        self._group_file = GrowingLines(source.folder / GROUPS)
        self._opened = OpenedGroups(self.steps, self.rows)
        self._history = PromptHistory()
        # Rows of the steps around the one that is looked at; of tables, which hold every token, two.
        self._rows, self._tables, self._tokenizer = Cache(8), Cache(2), Cache(1)

    def steps(self, *, held_out: bool = False) -> list[int]:
        """The steps whose samples are there, in order."""
        folder = self.source.folder
        if self.source.kind == "trl":
            return [] if held_out else sorted(foreign.completion_files(folder))
        return eval_steps(folder) if held_out else rollout_steps(folder)

    def rows(self, step: int, *, held_out: bool = False) -> list[Line]:
        """A row per rollout of a step, without what there is per token."""
        path = self._file(step, held_out=held_out)
        if self.source.kind != "trl":
            return self._rows.get(path, "", lambda: light_rows(path))
        return self._rows.get(path, "", lambda: foreign.completion_rows(path, self.records.look()))

    def row(self, step: int, row: int, *, held_out: bool = False) -> Line:
        """One rollout with all there is about it."""
        if self.source.kind == "trl":
            rows = self.rows(step, held_out=held_out)
            if not 0 <= row < len(rows):
                raise ConfigError(f"step {step} holds {len(rows)} rollouts, no number {row}.")
            return rows[row]
        path = self._file(step, held_out=held_out)
        return row_of(self._tables.get(path, "", lambda: read_columns(path)), row)

    def groups(self) -> Sequence[Line]:
        """A line per step with the scores and lengths of its groups."""
        has_file = regular(self.source.folder / GROUPS) is not None
        return self._group_file.look() if has_file else self._opened.look()

    def history(self) -> PromptHistory:
        """How each prompt fared so far."""
        self._history.take(self.groups())
        return self._history

    def tokenizer(self) -> Tokenizer | None:
        """The run's own; None where it left none."""
        path = tokenizer_file(self.source.folder)
        return self._tokenizer.get(path, "", lambda: find_tokenizer(path)) if path else None

    def brief(self) -> Sequence[Line]:
        """Step and reward of each step: all that a list of many runs may hold in memory of each."""
        has_index = self.source.kind == "muster" and regular(self.source.folder / INDEX) is not None
        return self._index.look() if has_index else self.records.look()

    @property
    def modified(self) -> float:
        """When the run last wrote something, in seconds since 1970."""
        return max(self.records.modified, self.timings.modified, self.events.modified)

    @property
    def num_broken(self) -> int:
        """Lines that were passed over, since they are no JSON objects."""
        files = (self.records, self.timings, self.events, self._group_file)
        return sum(file.num_broken for file in files if isinstance(file, GrowingLines))

    def _file(self, step: int, *, held_out: bool) -> Path:
        if self.source.kind != "trl":
            return (eval_file if held_out else rollouts_file)(self.source.folder, step)
        files = {} if held_out else foreign.completion_files(self.source.folder)
        if step not in files:
            raise ConfigError(f"{self.source.name} holds no completions of step {step}.")
        return files[step]


def _without_extras(event: Line) -> Line | None:
    """The event, but for what rewards noted of every completion, which nothing here shows."""
    return None if event.get("kind") == "extras" else event


def _brief(line: Line) -> Line:
    return {"step": line.get("step"), "reward": line.get("reward")}


def _records(source: Source) -> Records:
    match source.kind:
        case "muster":
            return GrowingLines(source.folder / METRICS)
        case "trl":
            return foreign.TrainerLog(source.folder)
        case "metrics":
            return foreign.PlainMetrics(source.folder)
