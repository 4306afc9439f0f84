"""The fork server: a small process without torch's or the run's state that forks a worker when asked.

It is the parent of all its workers and adopts their orphans, so it alone can end one with everything
that it started, and no number of a process is ever used twice by mistake. It has one thread.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from muster.rewards.pool.trees import (
    adopt_orphans,
    children,
    die_with_parent,
    kill_tree,
    volunteer_for_the_memory_killer,
    wait_for,
)
from muster.rewards.pool.working import forget_signals

KILL_LIMIT_S = 5.0
"""A killed process is gone within this time, unless the kernel holds it."""


def serve(control: socket.socket, work: Callable[[socket.socket], None]) -> None:
    """Starts and ends workers as the run asks; when the run closes the line, ends them all and returns."""
    adopt_orphans()
    # The run decides when its workers end, also where a whole group of processes is told to.
    signal.signal(signal.SIGTERM, _ignored)
    signal.signal(signal.SIGINT, _ignored)
    living: set[int] = set()
    while (received := _receive(control)) is not None:
        order, descriptors = received
        if order["do"] == "start":
            answer = _start(control, descriptors, work)
            if "pid" in answer:
                living.add(answer["pid"])
        else:
            answer = {"status": _end(order["pid"], order["patience_s"], living)}
        control.sendall(json.dumps(answer).encode() + b"\n")
    for pid in list(living):
        _end(pid, 0.0, living)


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next order with the descriptors that came with it; None when the run is gone."""
    try:
        text, descriptors, _, _ = socket.recv_fds(control, 2**12, 1)
    except OSError:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return (json.loads(text), list(descriptors)) if text else None


def _start(
    control: socket.socket, descriptors: list[int], work: Callable[[socket.socket], None]
) -> dict[str, Any]:
    [descriptor] = descriptors
    try:
        pid = os.fork()
    except OSError as error:
        os.close(descriptor)
        return {"error": str(error)}
    if pid == 0:
        _become_worker(control, descriptor, work)
    os.close(descriptor)
    return {"pid": pid}


def _become_worker(control: socket.socket, descriptor: int, work: Callable[[socket.socket], None]) -> None:
    """Runs a worker in this process, which ends with it: nothing above may go on twice."""
    status = 1
    try:
        os.setsid()
        die_with_parent()
        adopt_orphans()
        volunteer_for_the_memory_killer()
        forget_signals()
        control.close()
        work(socket.socket(fileno=descriptor))
        status = 0
    finally:
        os._exit(status)


def _end(pid: int, patience_s: float, living: set[int]) -> int | None:
    """Exit code of the worker, where it ended by itself within the patience; it and its own are gone then."""
    if pid not in living:
        return None
    living.discard(pid)
    status = wait_for(pid, patience_s) if patience_s else None
    if status is None:
        kill_tree(pid)
        wait_for(pid, KILL_LIMIT_S)
    _end_orphans(living)
    return status


def _end_orphans(living: set[int]) -> None:
    """Ends what workers that are gone had started: it is ours now, and so is what it leaves in turn."""
    deadline = time.monotonic() + KILL_LIMIT_S
    while (orphans := children(os.getpid()) - living) and time.monotonic() < deadline:
        for orphan in orphans:
            kill_tree(orphan)
            wait_for(orphan, KILL_LIMIT_S)


def _ignored(number: int, frame: object) -> None:
    """Does nothing; unlike SIG_IGN it is not handed down to programs that a reward starts."""
