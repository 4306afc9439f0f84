"""One writer per run folder; the system lets go of the lock when its process dies, however it dies."""

import os
import socket
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path

from muster.errors import CheckpointError

_held: set[int] = set()


class FolderLock:
    """Holds a folder until `release`; a second holder, in this process or another, is refused."""

    def __init__(self, folder: Path) -> None:
        """Takes the lock, or says who has it."""
        self._path = folder / "lock"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _take(self._descriptor)
        except OSError as error:
            os.close(self._descriptor)
            raise CheckpointError(
                f"{folder} is being written by {_holder(self._path)}. "
                "Wait for it, stop it, or give this run another name with --run.name."
            ) from error
        _held.add(self._descriptor)
        self._sign()

    def _sign(self) -> None:
        """Writes who holds the lock, for the message to others."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # Windows locks the first byte, so what others read starts after it.
        text = f" process {os.getpid()} on {socket.gethostname()} since {now}"
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, text.encode("utf-8", "replace"))

    def release(self) -> None:
        """Lets others write."""
        if self._descriptor in _held:
            _held.discard(self._descriptor)
            os.close(self._descriptor)


def _holder(path: Path) -> str:
    """Who signed the lock, as text; they may be about to."""
    try:
        with open(path, "rb", opener=_open_regular) as file:
            data = file.read(200)[1:]
    except OSError:
        data = b""
    return data.decode("utf-8", "replace").strip() or "another process"


def _open_regular(path: str | Path, flags: int) -> int:
    """A descriptor of a file; OSError for what is none, such as a pipe, which would never open."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no file")
    return descriptor


def is_being_written(folder: Path) -> bool:
    """Some process on this machine holds the folder's lock; False for a copy and for a killed run."""
    try:
        descriptor = _open_regular(folder / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        return _is_taken(descriptor)
    finally:
        os.close(descriptor)


def was_locked_here(folder: Path) -> bool:
    """Whether it was this machine that signed the lock of the folder, or nobody."""
    path = folder / "lock"
    return not path.exists() or f" on {socket.gethostname()} since " in _holder(path)


if sys.platform == "win32":
    import msvcrt

    def _is_taken(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return True
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
        return False

    def _take(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _is_taken(descriptor: int) -> bool:
        # Shared, and for an instant: two readers don't take each other for a writer.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _let_go_in_child() -> None:
        """A forked child shares the lock and would hold it after its parent was killed."""
        for descriptor in _held:
            os.close(descriptor)
        _held.clear()

    os.register_at_fork(after_in_child=_let_go_in_child)
