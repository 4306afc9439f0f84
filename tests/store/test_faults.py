"""What a run folder is after the n-th file operation failed, or the power went, for every n: P4, P5, P7.

The same writing as a run's, without a model: steps, checkpoints of which one is kept, a folder that a library
writes. Afterwards every file reads, and the run is taken up again to the bytes of one that was not disturbed.
"""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from muster import checkpoint
from muster.checkpoint import Checkpoint
from muster.config import Config, from_mapping, to_toml
from muster.errors import DiskFullError
from muster.files import Operation, staged, watched, write_atomic, write_by
from muster.records import StepReport
from muster.resuming import go_on, taken_up
from muster.store import (
    RunStore,
    eval_steps,
    read_eval,
    read_events,
    read_index,
    read_metrics,
    read_rollouts,
    rollout_steps,
)
from power import Disk

LAST = 3
Lose = Callable[[Disk], None]


def settings(folder: Path) -> Config:
    return from_mapping(
        {
            "model": {"path": "nobody/nothing"},
            "data": {"path": "nobody/rows"},
            "reward": {"use": "char_count"},
            "run": {"name": "toy", "dir": str(folder), "steps": LAST},
        }
    )


def start_or_go_on(folder: Path, reports: list[StepReport]) -> None:
    """The run from where it is to its end."""
    config = settings(folder)
    place = folder / "toy"
    if not place.is_dir():
        with RunStore.create(place, to_toml(config), {}) as store:
            work(store, reports, 0)
        return
    with taken_up(place, config, lambda _: None) as taken:
        work(go_on(taken, config, dict), reports, taken.step + 1)


def work(store: RunStore, reports: list[StepReport], first: int) -> None:
    for report in reports[first : LAST + 1]:
        store.append_step(report)
        if report.step:
            tensors = {"a": torch.full((4,), float(report.step))}
            made = Checkpoint(weights=tensors, optimizer={}, old=None, state={"step": report.step})
            checkpoint.save(store.folder / "checkpoints", report.step, made)
        checkpoint.retire(store.folder / "checkpoints", report.step, keep=1)
    checkpoint.retire(store.folder / "checkpoints", LAST, keep=1)
    with staged(store.folder / "final") as staging:
        write_by(lambda path: save_file({"a": torch.ones(3)}, path / "model.safetensors"), staging)
        write_atomic(staging / "README.md", b"a model")


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    # The configuration names the folder that it is in.
    own = ("timings.jsonl", "events.jsonl", "meta.json", "lock", "config.toml")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name not in own}


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of flushes take seconds there, not minutes."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Path(folder)


class Whole:
    def __init__(self, folder: Path, reports: list[StepReport]) -> None:
        seen: list[Operation] = []
        with watched(seen.append):
            start_or_go_on(folder, reports)
        self.num_operations = len(seen)
        self.content = content(folder / "toy")


def assert_readable(folder: Path) -> None:
    """Readers meet no torn file: whatever is there by name is whole."""
    if not (folder / "meta.json").exists():
        return
    for line in read_metrics(folder):
        if line["step"]:
            read_rollouts(folder, line["step"])
    read_index(folder)
    read_events(folder)
    for step in rollout_steps(folder):
        read_rollouts(folder, step)
    for step in eval_steps(folder):
        read_eval(folder, step)
    found, skipped = checkpoint.find(folder / "checkpoints")
    assert skipped == []
    if found is not None:
        value = checkpoint.load(found, torch.device("cpu")).weights["a"][0]
        assert value == int(found.name)
    final = folder / "final"
    assert not final.exists() or {path.name for path in final.iterdir()} == {"model.safetensors", "README.md"}


def failing_at(number: int, code: int, *, stays: bool) -> Callable[[Operation], None]:
    """Fails the operation of this number, counted from 1, and where it stays so, all after it."""
    seen = 0

    def fail(operation: Operation) -> None:
        nonlocal seen
        seen += 1
        if seen == number or (stays and seen > number):
            raise OSError(code, os.strerror(code), str(operation.path))

    return fail


@pytest.mark.parametrize(("code", "stays"), [(errno.EIO, False), (errno.ENOSPC, False), (errno.ENOSPC, True)])
def test_a_run_survives_the_failure_of_any_file_operation(
    code: int, stays: bool, memory: Path, reports: list[StepReport]
):  # P4, P5, B51
    kind = f"{errno.errorcode[code]}-{stays}"
    whole = Whole(memory / f"whole-{kind}", reports)
    assert whole.num_operations > 100
    for number in range(1, whole.num_operations + 1):
        folder = memory / f"{kind}-{number}"
        expected = DiskFullError if code == errno.ENOSPC else OSError
        with watched(failing_at(number, code, stays=stays)), suppress(expected):
            start_or_go_on(folder, reports)
        assert_readable(folder / "toy")
        start_or_go_on(folder, reports)
        assert content(folder / "toy") == whole.content, number


def test_a_run_survives_a_power_loss_at_any_file_operation(memory: Path, reports: list[StepReport]):  # P4
    whole = Whole(memory / "whole", reports)
    for number in range(1, whole.num_operations + 1):
        folder = memory / f"power-{number}"
        (folder / "runs").mkdir(parents=True)
        disk, seen = Disk(folder / "runs"), iter(range(number - 1))

        def lose(operation: Operation, disk: Disk = disk, seen: Iterator[int] = seen) -> None:
            disk(operation)
            if next(seen, None) is None:
                raise PowerLossError

        with watched(lose), suppress(PowerLossError):
            start_or_go_on(folder / "runs", reports)
        disk.lose_power(folder / "after")
        assert_readable(folder / "after" / "toy")
        start_or_go_on(folder / "after", reports)
        assert content(folder / "after" / "toy") == whole.content, number


class PowerLossError(BaseException):
    """Nothing goes on after it."""


def test_the_disk_of_these_tests_loses_what_was_not_flushed(tmp_path: Path):
    """A writer that forgets a flush is found: its file is halved, its rename undone."""
    root = tmp_path / "runs"
    root.mkdir()
    (root / "kept").write_bytes(b"old")
    disk = Disk(root)
    disk(Operation("write", root / "new"))
    (root / "new").write_bytes(b"12345678")
    (root / "kept").write_bytes(b"newer")
    disk(Operation("sync", root))
    disk(Operation("replace", root / "renamed"))
    os.replace(root / "new", root / "renamed")
    disk(Operation("sync", root / "renamed"))
    disk.lose_power(tmp_path / "after")
    assert {p.name: p.read_bytes() for p in (tmp_path / "after").iterdir()} == {
        "kept": b"old",
        "new": b"1234",
    }
