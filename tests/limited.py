"""Calls in a child process that may take so much memory and processor time, and no more."""

import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from process_state import MIB


class Ended(NamedTuple):
    """How a call ended."""

    said: str
    """What it returned, or the type and words of what it raised."""
    seconds: float
    """Processor time."""
    grown_mib: float
    """The most memory it held beyond what it started with."""


def limited(call: Callable[[], object], *, memory_mib: int, seconds: float) -> Ended:
    """The call, made in a fork; a limit that it meets ends it with MemoryError, or with its process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _call_and_end(call, memory_mib, seconds, writing)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="surrogatepass") as stream:
        lines = stream.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return Ended(f"ended by {signal.Signals(os.WTERMSIG(status)).name}", seconds, memory_mib)
    spent, grown, said = lines.split("\n", 2)
    return Ended(said, float(spent), float(grown))


def _call_and_end(call: Callable[[], object], memory_mib: int, seconds: float, writing: int) -> None:
    import resource  # Windows has none, and there these tests are skipped.

    try:
        pages, resident = (int(word) for word in open("/proc/self/statm").read().split()[:2])  # noqa: SIM115
        page = resource.getpagesize()
        limit = pages * page + memory_mib * MIB
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        started = time.process_time()
        try:
            said = repr(call())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        spent = time.process_time() - started
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - resident * page / MIB
        with open(writing, "w", encoding="utf-8", errors="surrogatepass") as stream:
            stream.write(f"{spent}\n{grown}\n{said}")
    finally:
        os._exit(0)
