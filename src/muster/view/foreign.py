"""Folders of other trainers: TRL's output folder, and a plain file of metrics."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from muster.store import METRICS, Line, to_json
from muster.view.growing import GrowingLines, read_object, regular
from muster.view.sources import trainer_state
from muster.view.tables import read_columns

_STATE_LIMIT = 512 * 2**20
_FILE = "completions_*.parquet"
_TRL_OWN = {"step", "prompt", "completion", "advantage"}

TRL_LACKS = (
    "tokens, their ids and their logprobs (TRL writes texts only)",
    "completions of held-out prompts",
    "which row of the data a prompt was: prompts are told apart by their text",
)
METRICS_LACKS = ("samples: prompts, completions and their rewards", "settings", "events")


class TrainerLog:
    """The steps that a trainer's state tells of; read again when the file was written again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: tuple[str, int] | None = None
        self._lines: list[Line] = []
        self.generation = 0
        self.modified = 0.0

    def look(self) -> list[Line]:
        """A line per step."""
        path = trainer_state(self._folder)
        found = regular(path) if path else None
        stamp = (str(path), found.st_mtime_ns) if found else None
        if stamp != self._stamp:
            self._stamp, self._lines = stamp, log_lines(self._folder)
            self.generation += 1
            self.modified = found.st_mtime if found else 0.0
        return self._lines


def log_lines(folder: Path) -> list[Line]:
    """A line per step from `trainer_state.json`: what was logged at a step in several parts, put together."""
    path = trainer_state(folder)
    state = read_object(path, _STATE_LIMIT) if path else None
    logged = state.get("log_history") if state else None
    by_step: dict[int, Line] = {}
    for entry in logged if isinstance(logged, list) else []:
        step = entry.get("step") if isinstance(entry, dict) else None
        if isinstance(step, int):
            by_step.setdefault(step, {}).update(entry)
    return [by_step[step] for step in sorted(by_step)]


def planned_steps(folder: Path) -> int | None:
    """How many steps TRL meant to take; None where it does not say."""
    path = trainer_state(folder)
    state = read_object(path, _STATE_LIMIT) if path else None
    steps = state.get("max_steps") if state else None
    return steps if isinstance(steps, int) and steps > 0 else None


class PlainMetrics:
    """The lines of a `metrics.jsonl` by whoever: without a `step`, a line's number is its step."""

    def __init__(self, folder: Path) -> None:
        self._file = GrowingLines(folder / METRICS)

    @property
    def generation(self) -> int:
        """Changes where the file was written anew."""
        return self._file.generation

    @property
    def modified(self) -> float:
        """When the file last changed, in seconds since 1970."""
        return self._file.modified

    def look(self) -> list[Line]:
        """A line per step."""
        return [
            line if _is_step(line.get("step")) else {**line, "step": number}
            for number, line in enumerate(self._file.look(), start=1)
        ]


def _is_step(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def completion_files(folder: Path) -> dict[int, Path]:
    """TRL's files of completions by step."""
    paths = (folder / "completions").glob(_FILE)
    numbered = {path: path.stem.removeprefix("completions_") for path in paths}
    return {int(number): path for path, number in numbered.items() if number.isdecimal()}


def completion_rows(path: Path, log: Iterable[Mapping[str, object]]) -> list[Line]:
    """TRL's completions as rollouts; rows that follow each other with one prompt are a group.

    Which columns are rewards follows from what was logged; what else a reward function noted stays beside
    them. The score is their sum, since the weights are not in the folder.
    """
    table = read_columns(path)
    rewards, rows = reward_names(log, table.column_names), table.to_pylist()
    named = [(text_of(row.get("prompt")), row) for row in rows]
    rollouts: list[Line] = []
    for group, (prompt, some) in enumerate(groupby(named, key=lambda pair: pair[0])):
        rollouts += [_rollout(row, rewards, prompt, f"{group}", index) for index, (_, row) in enumerate(some)]
    return rollouts


def _rollout(row: Line, rewards: Sequence[str], prompt: str, group: str, index: int) -> Line:
    parts = {name: row.get(name) for name in rewards if name in row}
    numbers = [value for value in parts.values() if isinstance(value, int | float) and math.isfinite(value)]
    extras = {name: value for name, value in row.items() if name not in _TRL_OWN and name not in parts}
    return {
        "group_id": group,
        "index": index,
        "sample_id": prompt,
        "sample": to_json({"columns": extras}),
        "prompt_text": prompt,
        "completion_text": text_of(row.get("completion")),
        "score": math.fsum(numbers) if numbers else None,
        "parts": to_json(parts),
        "advantage": row.get("advantage"),
    }


def reward_names(lines: Iterable[Mapping[str, object]], columns: Iterable[str]) -> list[str]:
    """Which of the columns are rewards: those whose mean was logged, as `rewards/NAME/mean`."""
    logged = {key.split("/")[1] for line in lines for key in line if key.startswith("rewards/")}
    left = [name for name in columns if name not in _TRL_OWN]
    return [name for name in left if name in logged] or [name for name in left if "reward" in name.lower()]


def text_of(value: object) -> str:
    """A prompt or completion as text: as it is, or its chat messages, each under its role."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        messages = [item for item in value if isinstance(item, dict)]
        return "\n".join(f"{item.get('role', '?')}: {_content(item.get('content'))}" for item in messages)
    return "" if value is None else str(value)


def _content(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
