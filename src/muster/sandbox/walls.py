"""The walls around a program: one way to run it apart, as a record that writes the command line for it.

bubblewrap: namespaces of its own for users (root: a user of its own), network, processes, IPC and
host name; /usr and the interpreter read-only; a private /tmp of bounded size; nothing else of the file
system. Without it: a session and a folder of its own and the limits; root switches to a user that owns
nothing.
"""

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import randbelow

NUM_USERS = 2**20
"""How many users root has to choose from, so that no two programs share one."""

_SYSTEM_FOLDERS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
)
_PROGRAM, _WORK = "/program", "/tmp"
_KERNEL_COUNTING_BY_NAMESPACE = (5, 14)


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """One way to run a program apart."""

    bubblewrap: str | None
    """Path of the tool; None runs without it."""
    first_user: int | None
    """Root gives each program a user of its own, from here on; None keeps the user."""
    python: str
    """The interpreter that programs run on, with its standard library and nothing else."""

    @property
    def counts_others(self) -> bool:
        """The limit on processes counts what the user runs elsewhere too."""
        if self.first_user is not None:
            return False
        return self.bubblewrap is None or _kernel() < _KERNEL_COUNTING_BY_NAMESPACE

    def new_user(self) -> int | None:
        """A user that owns nothing and runs nothing; None where the user can't be changed."""
        return None if self.first_user is None else self.first_user + randbelow(NUM_USERS)

    def program_folder(self, folder: Path) -> str:
        """Where a program finds its files, which are in `folder` outside."""
        return _PROGRAM if self.bubblewrap else str(folder / "program")

    def work_folder(self, folder: Path) -> str:
        """Where a program may write."""
        return _WORK if self.bubblewrap else str(folder / "work")

    def wrapped(self, command: list[str], folder: Path, disk_bytes: int, alive: int) -> list[str]:
        """The command line that runs `command` behind the walls.

        bubblewrap keeps the descriptor `alive` open until the last process behind the walls is gone.
        """
        if self.bubblewrap is None:
            return command
        # Root changes to another user inside instead; in a user namespace it could not.
        user = (
            ["--unshare-user"]
            if self.first_user is None
            else ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        )
        spaces = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        return [
            self.bubblewrap,
            *spaces,
            "--die-with-parent",
            "--new-session",
            *["--sync-fd", str(alive)],
            *["--cap-drop", "ALL"],
            *user,
            *_system_binds(self.python),
            *["--proc", "/proc", "--dev", "/dev"],
            *["--perms", "1777", "--size", str(disk_bytes), "--tmpfs", _WORK],
            *["--ro-bind", str(folder / "program"), _PROGRAM],
            *["--remount-ro", "/"],
            "--",
            *command,
        ]

    def __str__(self) -> str:
        """What holds here and what does not, for people."""
        processes = "processes limited" if not self.counts_others else "processes limited, counted per user"
        if self.bubblewrap:
            return (
                "bubblewrap: no network, no other processes, read-only system, private /tmp, "
                f"empty environment; time, memory per process, disk and {processes}"
            )
        user = "a user of its own" if self.first_user is not None else "YOUR user"
        memory = "" if sys.platform == "darwin" else ", memory per process"
        return (
            f"no bubblewrap: runs as {user}, with an empty environment; time{memory}, file size and "
            f"{processes}; NOT isolated: network, files that this user may read, the total of what it writes"
            + ("" if self.first_user is not None else ", signals to your other processes")
        )


def _system_binds(python: str) -> Iterator[str]:
    """Arguments that show the system's programs and libraries, and the interpreter's own folder."""
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            yield from ("--symlink", os.readlink(folder), folder)
        elif os.path.exists(folder):
            yield from ("--ro-bind", folder, folder)
    home = Path(python).parent.parent
    if not home.is_relative_to("/usr"):
        # Left to bubblewrap, folders on the way would be open to nobody but root.
        for parent in reversed(home.parents[:-1]):
            yield from ("--dir", str(parent))
        yield from ("--ro-bind", str(home), str(home))


def _kernel() -> tuple[int, ...]:
    """Major and minor version of a Linux kernel; (0,) elsewhere."""
    parts = platform.release().split(".")[:2] if sys.platform == "linux" else []
    return tuple(int(part) for part in parts if part.isdecimal()) or (0,)
