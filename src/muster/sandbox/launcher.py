"""Runs at the border: takes the limits on, gives up the user, and becomes the program.

Its text is handed to an interpreter as an argument, so it imports only the standard library and
reads no file. Without bubblewrap it stays on as the parent of everything the program starts, and
kills what is left when the program ends, or when it is told to (SIGTERM).
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_SWEEP_S = 5.0


def main() -> None:
    """Does what the order in the first argument says."""
    order = json.loads(sys.argv[1])
    program: list[int] = []
    if order["supervises"]:
        signal.signal(signal.SIGTERM, lambda *_: [_kill(pid) for pid in program])
        _control(_PR_SET_CHILD_SUBREAPER, 1)
        _control(_PR_SET_PDEATHSIG, signal.SIGTERM)
        program.append(os.fork())
    if program and program[0]:
        _end_as(_supervise(program[0], order["uid"]))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _become(order)


def _become(order: dict[str, object]) -> NoReturn:
    """Replaces this process with the program."""
    limits, command, uid = order["limits"], order["command"], order["uid"]
    assert isinstance(limits, dict)
    assert isinstance(command, list)
    os.chdir(str(order["folder"]))
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    for name, value in limits.items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (allowed, allowed))
    if isinstance(uid, int):
        _give_up_user(uid)
    os.execv(command[0], command)


def _give_up_user(uid: int) -> None:
    """From root to a user that owns nothing."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def _supervise(program: int, uid: int | None) -> int:
    """The program's exit status, once nothing that it started is alive."""
    while True:
        pid, status = os.wait()
        if pid == program:
            break
    if uid is not None:
        _kill_user(uid)
    deadline = time.monotonic() + _SWEEP_S
    while _has_children() and time.monotonic() < deadline:
        for child in _children():
            _kill(child)
        time.sleep(0.002)
    return status


def _kill_user(uid: int) -> None:
    """Kills every process of the user at once: no fork gets away between two looks."""
    child = os.fork()
    if child == 0:
        _give_up_user(uid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)


def _has_children() -> bool:
    """Some child is alive; the dead are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    """Processes whose parent is this one: the program's own, and every orphan among its descendants."""
    own, found = str(os.getpid()), []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, IndexError):
                if name.isdecimal() and _stat(name)[1] == own:
                    found.append(int(name))
    return found


def _stat(pid: str) -> list[str]:
    """State, parent and the rest of what the kernel says of a process, after its name in brackets."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    """`prctl`, where there is one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_as(status: int) -> NoReturn:
    """Ends as the program did; a signal becomes 128 and its number, as in a shell."""
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
