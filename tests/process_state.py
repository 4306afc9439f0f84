"""What a process holds of the machine, read from Linux's /proc."""

import gc
import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
MIB = 2**20


class Held(NamedTuple):
    """What this process and those it started hold."""

    memory_mib: float
    """Resident, after a garbage collection."""
    descriptors: int
    threads: int
    children: int
    """Descendants that live, and those that ended and were not waited for."""
    workers_mib: float
    """Resident memory of the descendants together."""
    workers_descriptors: int


def held() -> Held:
    """What is held now."""
    gc.collect()
    own = PROC / "self"
    below = descendants(os.getpid())
    return Held(
        memory_mib=memory_mib(os.getpid()),
        descriptors=len(os.listdir(own / "fd")),
        threads=len(os.listdir(own / "task")),
        children=len(below),
        workers_mib=sum(memory_mib(pid) for pid in below),
        workers_descriptors=sum(len(os.listdir(PROC / str(pid) / "fd")) for pid in below),
    )


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def descendants(pid: int) -> list[int]:
    """Every process that the process started, or that those started."""
    found: list[int] = []
    for task in (PROC / str(pid) / "task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found
