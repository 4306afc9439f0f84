"""Runs that are killed, or lose power, at a chosen place, and taken up again until they are done.

Every attempt is a process forked from this one, so that torch is imported once. What is compared in the end
is the whole run folder, byte for byte, but for what tells of time. Moments are counted in the process's own
seconds on the processor, so that they fall anywhere in a run however busy the machine is.
"""

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from beside import forked
from muster.config import Config, from_mapping
from muster.engines.process import started_by
from muster.errors import ConfigError
from muster.files import Operation, watched
from muster.run import folder_of, run
from muster.store import read_timings
from power import Disk
from tiny import save_tiny_model
from toy_run import write_rows

OF_TIME = ("timings.jsonl", "events.jsonl", "meta.json", "lock")
"""What two equal runs do not have equal: it tells when, not what."""
LIMIT_S = 300.0

Setting = Mapping[str, object]

BASE: dict[str, Setting] = {
    "model": {"max_tokens": 128},
    "reward": {"use": ["toy_rewards:low_bytes"], "workers": 1},
    # Five prompts, two a step: an epoch's last one is left over for the next.
    "sampling": {"prompts_per_step": 2, "group_size": 4, "max_tokens": 4, "sync_every": 2},
    "algo": {"minibatches": 2, "passes": 2, "kl_coef": 0.05},
    "optim": {"lr": 1e-3, "warmup": 1, "schedule": "linear"},
    "eval": {"every": 2, "group_size": 2},
    "engine": {"options": {"products": "linear"}},
    "run": {
        "name": "toy",
        "dir": "runs",
        "steps": 4,
        "seed": 7,
        "budget_tokens": 256,
        "threads": 1,
        "save_every": 1,
        "keep": 2,
    },
}
VARIANTS: dict[str, dict[str, Setting]] = {
    "all weights": {},
    "adapter": {"model": {"lora": {"rank": 4, "alpha": 8.0}}},
    "ahead": {"engine": {"ahead": 1}, "sampling": {"sync_every": 1}},
    "by signal": {"data": {"draw": "by_signal"}, "run": {"save_every": 2}, "algo": {"resample": 1}},
}


@dataclass
class Count:
    """What a torture came to."""

    kills: int = 0
    resumes: int = 0
    anew: int = 0
    """Starts after a kill that came before there was a run folder."""
    num_bytes: int = 0
    """Bytes that were compared."""
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """As a line."""
        return (
            f"{self.kills} kills, {self.resumes} resumes, {self.anew} starts before there was a folder, "
            f"{self.num_bytes:,} bytes compared, {len(self.differences)} differences"
        )


class Outcome(NamedTuple):
    """How an attempt ended."""

    is_done: bool
    num_operations: int
    seconds: float
    """On the processor, from its first file operation on."""


def make_place(folder: Path) -> Path:
    """A folder with a tiny model and data that every run of a torture starts from."""
    save_tiny_model(folder / "model")
    write_rows(folder / "train.jsonl", [f"question {number}" for number in range(5)])
    write_rows(folder / "held_out.jsonl", ["what now", "what then"])
    return folder


def config_in(place: Path, variant: str) -> Config:
    """The configuration of a run in the current directory, on the model and the data of `place`."""
    paths: dict[str, Setting] = {
        "model": {"path": str(place / "model")},
        "data": {"path": str(place / "train.jsonl"), "eval_path": str(place / "held_out.jsonl")},
    }
    merged: dict[str, dict[str, object]] = {}
    for sections in (BASE, paths, VARIANTS[variant]):
        for section, values in sections.items():
            merged[section] = {**merged.get(section, {}), **values}
    return from_mapping(merged)


class Killing:
    """At the n-th operation, counted from 1: the process is gone."""

    def __init__(self, at: int | None, channel: int, power: Path | None = None) -> None:
        self.at, self.channel, self.seen = at, channel, 0
        self.disk = Disk(Path("runs")) if power else None
        self.power = power

    def __call__(self, operation: Operation) -> None:
        """Counts; where it is time, writes what a power loss leaves to `power`, and kills."""
        if self.disk is not None:
            self.disk(operation)
        self.seen += 1
        os.pwrite(self.channel, self.seen.to_bytes(4, "little"), 0)
        if self.seen == self.at:
            if self.disk is not None and self.power is not None:
                self.disk.lose_power(self.power)
            os.kill(os.getpid(), signal.SIGKILL)


class Torture:
    """A configuration, what its uninterrupted run leaves, and the runs that are compared with it."""

    def __init__(self, place: Path, work: Path, variant: str) -> None:
        """Runs it once without interruption, and counts its operations."""
        self.place, self.work, self.variant = place, work, variant
        self.count = Count()
        self._number = 0
        folder = self.new_folder()
        outcome = self.attempt(folder)
        assert outcome.is_done, "the run fails without being killed"
        self.num_operations, self.seconds = outcome.num_operations, outcome.seconds
        self.expected = content(folder / "runs" / "toy")

    def new_folder(self) -> Path:
        """An empty folder to run in."""
        self._number += 1
        folder = self.work / f"{self._number:04d}"
        folder.mkdir(parents=True)
        return folder

    def attempt(
        self,
        folder: Path,
        *,
        at: int | None = None,
        after_s: float | None = None,
        power: Path | None = None,
    ) -> Outcome:
        """Starts or resumes the run in `folder` in a process of its own, and kills it where asked to."""
        channel = os.memfd_create("operations")
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            _run_and_leave(folder, self.place, self.variant, Killing(at, channel, power))
        status, seconds = _wait(process, channel, after_s)
        seen = _num_seen(channel)
        os.close(channel)
        if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) != 0:
            said = (folder / "error.txt").read_text() if (folder / "error.txt").exists() else ""
            raise AssertionError(f"{self.variant}: a run failed after {seen} operations: {said}")
        return Outcome(not os.WIFSIGNALED(status), seen, seconds)

    def survive(self, *kills: Mapping[str, float]) -> None:
        """Kills the run at each of these places in turn, lets it end, and compares what it leaves.

        A place is `at`, an operation, or `after_s`; `power` with `at` takes what was not flushed, too.
        """
        folder = self.new_folder()
        for kill in kills:
            before = (folder / "runs" / "toy").is_dir()
            at, after_s = kill.get("at"), kill.get("after_s")
            power = folder / "lost" if "power" in kill else None
            outcome = self.attempt(folder, at=int(at) if at else None, after_s=after_s, power=power)
            self._note(before, outcome)
            if outcome.is_done:
                break
            if power is not None:
                shutil.rmtree(folder / "runs", ignore_errors=True)
                power.rename(folder / "runs")
        else:
            before = (folder / "runs" / "toy").is_dir()
            outcome = self.attempt(folder)
            assert outcome.is_done
            self._note(before, outcome)
        self._compare(folder / "runs" / "toy", str(kills))
        shutil.rmtree(folder)

    def _note(self, was_there: bool, outcome: Outcome) -> None:
        self.count.kills += not outcome.is_done
        self.count.resumes += was_there
        self.count.anew += not was_there

    def _compare(self, folder: Path, where: str) -> None:
        found = content(folder)
        for name in sorted(found.keys() | self.expected.keys()):
            if found.get(name) != self.expected.get(name):
                self.count.differences.append(f"{self.variant}, {where}: {name}")
        self.count.num_bytes += sum(map(len, found.values()))
        steps = [line["step"] for line in read_timings(folder)]
        if steps != sorted(set(steps)):
            self.count.differences.append(f"{self.variant}, {where}: timings of steps {steps}")


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder that two equal runs have equal."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in OF_TIME]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def random_times(seed: int, count: int, seconds: float) -> Iterator[float]:
    """So many moments of a run that takes so long, from its first to its last."""
    generator = random.Random(seed)
    return (generator.uniform(0, seconds) for _ in range(count))


def _run_and_leave(folder: Path, place: Path, variant: str, killing: Callable[[Operation], None]) -> None:
    """The child's part: it never returns."""
    try:
        os.chdir(folder)
        config = config_in(place, variant)
        with watched(killing), started_by(forked):
            # Nothing to resume yet: whoever starts a run anew says so.
            is_there = folder_of(config).is_dir()
            for _ in run(config, resume=is_there):
                pass
    except BaseException as error:
        is_refused = isinstance(error, ConfigError)
        Path(folder / "error.txt").write_text("".join(traceback.format_exception(error)))
        os._exit(2 if is_refused else 1)
    os._exit(0)


def _num_seen(channel: int) -> int:
    return int.from_bytes(os.pread(channel, 4, 0), "little")


def _wait(process: int, channel: int, after_s: float | None) -> tuple[int, float]:
    """The status the process ends with, and its seconds from its first file operation to its last moment.

    It is killed after so many of them, or where it hangs.
    """
    end = time.monotonic() + LIMIT_S
    first: float | None = None
    spent = 0.0
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return status, spent
        if first is None and _num_seen(channel):
            first = _processor_seconds(process)
        if first is not None:
            spent = _processor_seconds(process) - first
        if after_s is not None and first is not None and spent >= after_s:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    raise AssertionError("a run hangs")


def _processor_seconds(process: int) -> float:
    """Of the main thread, in which a run computes."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9
