"""The one writer of a run folder."""

import math
import types
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from muster.clock import AHEAD
from muster.errors import CheckpointError, ConfigError
from muster.files import append_line, leftovers, make_folder, read_whole, remove, write_atomic
from muster.records import Group, StepReport
from muster.redaction import without_secrets
from muster.store.groups import Got, groups_line
from muster.store.lock import FolderLock
from muster.store.reading import (
    CONFIG,
    EVENTS,
    GROUPS,
    INDEX,
    META,
    METRICS,
    SCHEMA_VERSION,
    TIMINGS,
    TOKENIZER,
    eval_file,
    read_meta,
    rollouts_file,
)
from muster.store.rows import to_parquet
from muster.store.strict import Line, parse_lines, to_json

PARTS = ("rollouts", "eval", "checkpoints")
"""Folders of the run's folder."""


class RunStore:
    """Appends to a run folder and holds its lock until it is closed."""

    def __init__(self, folder: Path, lock: FolderLock) -> None:
        """For `create` and `take` to call."""
        self.folder = folder
        self._lock = lock

    @classmethod
    def create(cls, folder: Path, config_toml: str, meta: Mapping[str, object]) -> Self:
        """A new run folder; refuses one that holds a run, or anything else."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"{folder} is there already and not empty. Go on with its run with --resume, "
                "or give this one another name with --run.name."
            )
        make_folder(folder)
        store = cls(folder, FolderLock(folder))
        try:
            store.begin(config_toml, meta)
        except BaseException:
            store.close()
            raise
        return store

    def begin(self, config_toml: str, meta: Mapping[str, object]) -> None:
        """Writes what run this is; `meta.json` comes last, and with it the folder is a run's."""
        for part in PARTS:
            make_folder(self.folder / part)
        write_atomic(self.folder / CONFIG, config_toml.encode("utf-8"))
        self._write_meta({"schema_version": SCHEMA_VERSION, **meta})

    @classmethod
    def take(cls, folder: Path) -> Self:
        """The run as it was left; nothing in it is changed yet."""
        return cls(folder, FolderLock(folder))

    def is_unborn(self) -> bool:
        """The process that made the folder ended before it had written what run it is."""
        names = {path.name for path in self.folder.iterdir()} - {path.name for path in leftovers(self.folder)}
        parts = [self.folder / part for part in PARTS if part in names]
        return names <= {*PARTS, CONFIG, "lock"} and not any(any(part.iterdir()) for part in parts)

    def drop_after(self, step: int) -> str:
        """Drops what was written of later steps; says which lines up to this step are lost, if any are.

        Events stay, since they tell what happened, not what was computed.
        """
        logs = {name: self.folder / name for name in (METRICS, TIMINGS, INDEX)}
        steps = {name: _keep_lines(path, step) for name, path in logs.items()}
        _keep_lines(self.folder / GROUPS, step)
        _keep_lines(self.folder / EVENTS, None)
        for folder in (self.folder, *(self.folder / part for part in PARTS)):
            make_folder(folder)
            for path in leftovers(folder):
                remove(path)
        for part in ("rollouts", "eval"):
            for path in (self.folder / part).glob("*.parquet"):
                if path.stem.isdecimal() and int(path.stem) > step:
                    remove(path)
        lost = [name for name, found in steps.items() if not found >= set(range(1, step + 1))]
        return f"{', '.join(lost)}: lines of steps up to {step} are lost" if lost else ""

    def amend(self, config_toml: str, inputs: Mapping[str, str]) -> None:
        """Writes the settings that the run goes on with, and what is in the files they name."""
        meta = read_meta(self.folder)
        self._write_meta({**meta, "inputs": {**meta.get("inputs", {}), **inputs}})
        write_atomic(self.folder / CONFIG, config_toml.encode("utf-8"))

    def append_step(self, report: StepReport) -> None:
        """Writes a step; its line in the metrics comes last and says that all the rest is there."""
        if report.groups:
            path = rollouts_file(self.folder, report.step)
            write_atomic(path, to_parquet(report.groups, report.traces))
        if report.eval:
            write_atomic(eval_file(self.folder, report.step), to_parquet(report.eval.groups))
        for text in report.warnings:
            self.append_event("warning", step=report.step, text=text)
        if extras := extras_of(report):
            self.append_event("extras", step=report.step, columns=extras)
        self._append(TIMINGS, timings_line(report))
        self._append(INDEX, index_line(report))
        if report.groups:
            self._append(GROUPS, groups_line(report.step, [_got(group) for group in report.groups]))
        held_out = report.eval.metrics if report.eval else {}
        self._append(METRICS, {"step": report.step, **report.metrics, **held_out})

    def keep_tokenizer(self, tokenizer_json: str) -> None:
        """Writes the tokenizer beside the rollouts: with it their token ids can be read without the model."""
        write_atomic(self.folder / TOKENIZER, tokenizer_json.encode("utf-8"))

    def append_event(self, kind: str, **fields: object) -> None:
        """Writes what happened, with the time and without secrets."""
        plain = without_secrets(fields)
        assert isinstance(plain, dict)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._append(EVENTS, {"time": now, "kind": kind, **plain})

    def close(self) -> None:
        """Lets others write."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, name: str, line: Mapping[str, object]) -> None:
        append_line(self.folder / name, to_json(line).encode("ascii"))

    def _write_meta(self, meta: Mapping[str, object]) -> None:
        write_atomic(self.folder / META, f"{to_json(meta)}\n".encode())


def _keep_lines(path: Path, last: int | None) -> set[int]:
    """Takes later steps' lines out of the file, and what a crash left of a last line; the steps that stay."""
    try:
        data = read_whole(path)
    except FileNotFoundError:
        return set()
    whole = data.split(b"\n")[:-1]
    lines = parse_lines(path, whole)
    steps = [_step(path, line) for line in lines] if last is not None else []
    stays = [step <= last for step in steps] if last is not None else [True] * len(lines)
    kept = b"".join(raw + b"\n" for raw, keep in zip(whole, stays) if keep)
    if kept != data:
        write_atomic(path, kept)
    return {step for step in steps if last is None or step <= last}


def _step(path: Path, line: Line) -> int:
    step = line.get("step")
    if not isinstance(step, int):
        raise CheckpointError(
            f"{path} holds a line whose step is {step!r}, not a number. Take it out or restore the file."
        )
    return step


def extras_of(report: StepReport) -> dict[str, Sequence[object]]:
    """What rewards noted in the step, by column; those of held-out completions as `eval_*`."""
    held_out = report.eval.extras if report.eval else {}
    return {**report.extras, **{f"eval_{column}": values for column, values in held_out.items()}}


def timings_line(report: StepReport) -> dict[str, object]:
    """Seconds by phase, and completion tokens of the step per second of each.

    Those in which later steps were sampled beside this one are no part of its time, and stand apart.
    """
    tokens = _completion_tokens(report.groups)
    seconds = {phase: took for phase, took in report.timings.items() if phase != AHEAD}
    speeds = {phase: tokens / took for phase, took in seconds.items() if took > 0}
    return {
        "step": report.step,
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": speeds if tokens else {},
        **({"ahead_s": report.timings[AHEAD]} if AHEAD in report.timings else {}),
    }


def index_line(report: StepReport) -> dict[str, object]:
    """What a list of steps shows without opening their files."""
    rollouts = [rollout for group in report.groups for rollout in group.rollouts]
    scores = [rollout.score.value for rollout in rollouts if rollout.score.value is not None]
    return {
        "step": report.step,
        "groups": len(report.groups),
        "rollouts": len(rollouts),
        "tokens": _completion_tokens(report.groups),
        "reward": math.fsum(scores) / len(scores) if scores else None,
        "reward_min": min(scores, default=None),
        "reward_max": max(scores, default=None),
        "truncated": sum(rollout.completion.is_truncated for rollout in rollouts),
        "failed": sum(rollout.score.is_failure for rollout in rollouts),
        "warnings": len(report.warnings),
        "eval_reward": report.eval.metrics.get("eval_reward") if report.eval else None,
        "is_evaluated": report.eval is not None,
    }


def _got(group: Group) -> Got:
    """What a group got, for its place in the file of groups."""
    rollouts = group.rollouts
    return Got(
        sample=group.sample.id,
        scores=[rollout.score.value for rollout in rollouts if rollout.score.value is not None],
        lengths=[rollout.completion.num_emitted for rollout in rollouts],
    )


def _completion_tokens(groups: Sequence[Group]) -> int:
    return sum(rollout.completion.num_emitted for group in groups for rollout in group.rollouts)
