"""Processes with all that they started: found, killed, and taken over when their parent is gone."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.002


def kill_tree(pid: int) -> None:
    """Kills the process, its group and every descendant that the system can name.

    They are stopped first, so that none starts another while the list is made. Descendants that left
    the group are found on Linux only.
    """
    if not hasattr(os, "killpg"):
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(pid)], capture_output=True, check=False)
        return
    _signal(pid, signal.SIGSTOP)
    doomed: set[int] = set()
    while new := descendants(pid) - doomed:
        for child in new:
            _signal(child, signal.SIGSTOP)
        doomed |= new
    for victim in (*doomed, pid):
        _signal(victim, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def descendants(pid: int) -> set[int]:
    """Children of the process, their children, and so on; empty where there is no /proc."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = children(waiting.pop()) - found
        found |= new
        waiting.extend(new)
    return found


def children(pid: int) -> set[int]:
    """Direct children of all threads of the process."""
    found: set[int] = set()
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found |= {
                    int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                }
    return found


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process, so that none gets out of sight."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Has the system kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def volunteer_for_the_memory_killer() -> None:
    """Where memory runs out, the system ends this process before the run."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def wait_for(pid: int, limit_s: float) -> int | None:
    """Exit code of a child (negative: the signal that ended it); None where it still runs at the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_S)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
