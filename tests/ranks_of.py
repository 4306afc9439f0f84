"""Runs trained by several processes at once, as a launcher starts them; forked, so that torch is there."""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from muster.config import Config
from muster.records import StepReport
from muster.run import Watchers, run
from muster.store import read_metrics

PLAIN = {"options": {"products": "linear"}}
"""An engine that measures nothing: how it computes is the same on every rank and in one process."""
LIMIT_S = 120
"""Beyond which a rank counts as one that waits for ever."""

Step = Callable[[int, StepReport], object]
"""Called with the rank and each of its reports."""


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train_on(
    count: int,
    config: Config,
    log: Path,
    *,
    resume: bool = False,
    each: Step = lambda number, report: None,
    stops: Callable[[int, int], bool] = lambda number, step: False,
) -> list[int]:
    """Exit codes of so many ranks that train together; what each said is in `log`.RANK.

    `stops` is asked on each rank, with its number and the step, whether it wants to stop.
    """

    def work(number: int) -> None:
        done = [0]
        watchers = Watchers(say=print, should_stop=lambda: stops(number, done[0] + 1))
        for report in run(config, resume=resume, watchers=watchers):
            done[0] = report.step
            each(number, report)

    return on_ranks(count, log, work)


def on_ranks(count: int, log: Path, work: Callable[[int], object]) -> list[int]:
    """Exit codes of so many processes that do the work, each told its number; what each says is in `log`."""
    port = free_port()
    pids = [_start(number, count, port, log, work) for number in range(count)]
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _start(number: int, count: int, port: int, log: Path, work: Callable[[int], object]) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        signal.alarm(LIMIT_S)
        os.environ |= {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        with Path(f"{log}.{number}").open("w") as out:
            sys.stdout = sys.stderr = out
            torch.set_num_threads(1)
            try:
                work(number)
                code = 0
            except BaseException:
                traceback.print_exc()
            out.flush()
    finally:
        os._exit(code)


def killed(number: int, report: StepReport) -> None:
    """The second rank is killed after its second step."""
    if number == 1 and report.step == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def failing(number: int, report: StepReport) -> None:
    """The second rank fails after its second step."""
    if number == 1 and report.step == 2:
        raise ValueError("broken on one rank")


def rollouts_of(folder: Path) -> list[dict[str, object]]:
    """Every rollout of a run, in order."""
    tables = map(pq.read_table, sorted(folder.glob("rollouts/*.parquet")))
    return [row for table in tables for row in table.to_pylist()]


def norms_of(folder: Path) -> list[float]:
    """The gradient norm of every step that learned."""
    return [line["grad_norm"] for line in read_metrics(folder) if line["grad_norm"] is not None]


def near(first: object, second: object, tolerance: float) -> bool:
    """Equal, numbers within a relative tolerance."""
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) <= tolerance * max(1.0, abs(first))
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(near(a, b, tolerance) for a, b in zip(first, second))
    return first == second


def assert_same_run(first: Path, second: Path) -> None:
    """Two runs sampled the same tokens, measured the same and ended at the same weights, but for rounding."""
    alone, together = rollouts_of(first), rollouts_of(second)
    assert len(alone) == len(together) > 0
    for one, other in zip(alone, together, strict=True):
        assert one["completion_ids"] == other["completion_ids"]
        assert one.keys() == other.keys()
        assert [name for name in one if not near(one[name], other[name], 1e-5)] == []
    for one, other in zip(read_metrics(first), read_metrics(second), strict=True):
        assert one.keys() == other.keys()
        assert [name for name in one if not near(one[name], other[name], 1e-4)] == []
    weights, others = (load_file(folder / "final" / "model.safetensors") for folder in (first, second))
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        assert (value - others[name]).abs().max() <= 1e-6, name
