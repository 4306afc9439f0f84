"""What a program may use before it is ended."""

import os
import sys
from dataclasses import dataclass
from math import ceil
from pathlib import Path

_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on one program and all the processes that it starts."""

    wall_s: float = 5.0
    """Seconds on the clock until everything is killed."""
    memory_bytes: int = 512 * _MIB
    """Address space of each process."""
    output_bytes: int = _MIB
    """What is read of its standard output; a program that writes more is killed."""
    disk_bytes: int = 16 * _MIB
    """Size of each file; under bubblewrap of all files together."""
    num_processes: int = 16
    """Processes and threads alive at once."""
    num_open_files: int = 64
    """Open descriptors of each process."""

    def for_system(self, num_tasks_before: int) -> dict[str, int]:
        """The limits by the names that `setrlimit` knows.

        `num_tasks_before` are tasks of the same user that are not the program's.
        """
        named = {
            "RLIMIT_CORE": 0,
            # The clock ends it first; this is for what escapes the clock.
            "RLIMIT_CPU": ceil(self.wall_s) + 1,
            "RLIMIT_FSIZE": self.disk_bytes,
            "RLIMIT_NOFILE": self.num_open_files,
            "RLIMIT_NPROC": self.num_processes + num_tasks_before,
        }
        # macOS refuses a bound on the address space of a process that has mapped its shared libraries.
        return named if sys.platform == "darwin" else named | {"RLIMIT_AS": self.memory_bytes}


def num_tasks_of_user() -> int:
    """Processes and threads that this user has now; 0 where there is no /proc to count them in."""
    user = os.getuid()
    return sum(_num_threads(folder) for folder in Path("/proc").glob("[0-9]*") if _owner(folder) == user)


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def _num_threads(folder: Path) -> int:
    try:
        return sum(1 for _ in (folder / "task").iterdir())
    except OSError:
        return 0
