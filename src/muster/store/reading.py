"""What is in a run folder, for those who only look; works while the run is being written."""

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa

from muster.errors import CheckpointError, ConfigError
from muster.files import read_whole
from muster.store.rows import PromptScores, Rollouts, from_parquet, scores_from_parquet
from muster.store.strict import Line, read_lines

SCHEMA_VERSION = 1
"""Of the run folder's format; a reader refuses newer ones."""

METRICS, TIMINGS, EVENTS, INDEX = "metrics.jsonl", "timings.jsonl", "events.jsonl", "index"
GROUPS = "groups.jsonl"
META, CONFIG, TOKENIZER = "meta.json", "config.toml", "tokenizer.json"
MAX_META_BYTES = 2**20
"""Largest `meta.json`; a thousandth of it is usual."""

MAX_CONFIG_BYTES = 2**20
"""Largest `config.toml`; a thousandth of it is usual."""

_Parsed = TypeVar("_Parsed")


class StoredConfig(NamedTuple):
    """A run's `config.toml` as those need it who only look: whatever is wrong with it, it is read."""

    text: str
    """Empty where there is no such file."""
    tables: Line
    """Empty where the text is no TOML."""

    def table(self, section: str) -> Line:
        """The settings of a section; empty where there are none."""
        found = self.tables.get(section)
        return found if isinstance(found, dict) else {}

    def get(self, section: str, key: str) -> object:
        """A setting; None where it isn't set."""
        return self.table(section).get(key)

    @property
    def steps(self) -> int | None:
        """How many steps the run takes; None where it counts in epochs, or nobody knows."""
        steps = self.get("run", "steps")
        return steps if isinstance(steps, int) else None


def read_config(folder: Path) -> StoredConfig:
    """The run's settings; of a file that is missing, too large or no TOML, what can be told of it."""
    try:
        text = read_whole(folder / CONFIG, MAX_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return StoredConfig("", {})
    try:
        return StoredConfig(text, tomllib.loads(text))
    except (ValueError, RecursionError):  # a TOMLDecodeError is one, and so is a number of many digits
        return StoredConfig(text, {})


def rollouts_file(folder: Path, step: int) -> Path:
    """Where a step's rollouts are."""
    return folder / "rollouts" / f"{step:06d}.parquet"


def eval_file(folder: Path, step: int) -> Path:
    """Where the completions of an evaluation are."""
    return folder / "eval" / f"{step:06d}.parquet"


def read_meta(folder: Path) -> Line:
    """What `meta.json` holds; refuses a folder that is no run, or one that a newer Muster wrote."""
    path = folder / META
    try:
        meta = json.loads(read_whole(path, MAX_META_BYTES))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} is not the folder of a run: there is no {META} in it. Name a run or its folder."
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON. Restore the file.") from error
    version = meta.get("schema_version") if isinstance(meta, dict) else None
    if not isinstance(version, int):
        raise CheckpointError(f"{path} names no schema_version. Restore the file.")
    if version > SCHEMA_VERSION:
        raise CheckpointError(
            f"{folder} has format {version}, but this Muster reads up to {SCHEMA_VERSION}: "
            "a newer one wrote it. Update with: pip install --upgrade muster-rl"
        )
    return meta


def read_metrics(folder: Path) -> list[Line]:
    """One object per step: `step` and its metrics, held-out ones included."""
    return read_lines(folder / METRICS)


def held_out_score(metrics: Mapping[str, object]) -> float | None:
    """What evaluations are compared by, more being better: the mean reward or, without one, -loss."""
    reward, loss = metrics.get("eval_reward"), metrics.get("eval_loss")
    if isinstance(reward, int | float):
        return float(reward)
    return -float(loss) if isinstance(loss, int | float) else None


def held_out_scores(folder: Path) -> dict[int, float]:
    """The held-out score of each evaluation, by its step."""
    scores = {int(line["step"]): held_out_score(line) for line in read_metrics(folder)}
    return {step: score for step, score in scores.items() if score is not None}


def read_timings(folder: Path) -> list[Line]:
    """One object per step: seconds and tokens per second by phase."""
    return read_lines(folder / TIMINGS)


def read_events(folder: Path) -> list[Line]:
    """One object per event: `time`, `kind` and what it says."""
    return read_lines(folder / EVENTS)


def was_stopped(folder: Path) -> bool:
    """The run was asked to stop before its end, and did; nothing was written since."""
    events = read_events(folder)
    return bool(events) and events[-1].get("kind") == "stopped"


def paused_at(folder: Path) -> str:
    """The findings at which the run was stopped last, if nothing was written since; empty otherwise."""
    events = read_events(folder) if folder.is_dir() else []
    found = events[-1].get("findings") if events and events[-1].get("kind") == "stopped" else None
    return ", ".join(map(str, found)) if isinstance(found, list) else ""


def read_index(folder: Path) -> list[Line]:
    """One object per step: how many groups and rollouts, mean reward, whether it was evaluated."""
    return read_lines(folder / INDEX)


def read_rollouts(folder: Path, step: int) -> Rollouts:
    """The groups and traces of a step."""
    return _read(rollouts_file(folder, step), f"step {step}", from_parquet)


def read_prompt_scores(folder: Path, step: int) -> tuple[PromptScores, ...]:
    """The prompts of a step with the scores of their rollouts: quicker than all of the rollouts."""
    return _read(rollouts_file(folder, step), f"step {step}", scores_from_parquet)


def read_eval(folder: Path, step: int) -> Rollouts:
    """The groups of the evaluation at a step; no traces."""
    return _read(eval_file(folder, step), f"evaluation at step {step}", from_parquet)


def eval_steps(folder: Path) -> list[int]:
    """The steps at which the run was evaluated, in order."""
    return _steps_of(folder / "eval")


def rollout_steps(folder: Path) -> list[int]:
    """The steps whose rollouts are there, in order."""
    return _steps_of(folder / "rollouts")


def _steps_of(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.parquet") if path.stem.isdecimal())


def _read(path: Path, what: str, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    try:
        data = read_whole(path)
    except FileNotFoundError as error:
        steps = _steps_of(path.parent)
        there = f"{steps[0]} to {steps[-1]}" if steps else "none yet"
        raise ConfigError(f"{path.parent} holds no {what}; steps there: {there}.") from error
    try:
        return parse(data)
    except (
        pa.ArrowException,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        OSError,
        MemoryError,
        RecursionError,
    ) as error:
        raise CheckpointError(f"{path} can't be read as rollouts: {error}. Restore the file.") from error


def choose_name(runs: Path, stem: str, *, resume: bool) -> str:
    """`stem-1`, `stem-2` ...: the next that is free, or the last there is where a run is resumed."""
    numbers = [
        0,
        *(
            int(n)
            for path in runs.glob("*")
            if path.name.startswith(f"{stem}-") and (n := path.name[len(stem) + 1 :]).isdecimal()
        ),
    ]
    last = max(numbers)
    if resume and last == 0:
        raise ConfigError(f"{runs} holds no run {stem}-1 or later to resume. Name one with --run.name.")
    return f"{stem}-{last if resume else last + 1}"
