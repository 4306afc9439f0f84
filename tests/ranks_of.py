"""Runs trained by several processes at once, as a launcher starts them; forked, so that torch is there."""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from muster.config import Config
from muster.records import StepReport
from muster.run import Watchers, run

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
