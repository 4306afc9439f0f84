"""The file layer: whatever Muster must not lose is written through these few functions.

A file is whole or absent, never torn: write beside, flush to disk, rename, flush the folder. A line
that is appended is on disk when the call returns; a crash loses at most the last one. What a library
writes goes into a staging folder that is published whole. Every operation is announced to a watcher before
it is done, so that a test can fail it, or kill the process, at any of them. A disk that has no room is
a DiskFullError, which gives the bytes needed and free.
"""

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from muster.errors import DiskFullError

Kind = Literal["make", "write", "sync", "replace", "remove"]

_NO_ROOM = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_LEFTOVER = re.compile(r"\..+\.(\d+\.tmp|partial)")
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


class Operation(NamedTuple):
    """One step on the way to disk."""

    kind: Kind
    path: Path


Watcher = Callable[[Operation], None]

_watchers: list[Watcher] = []


@contextlib.contextmanager
def watched(watcher: Watcher) -> Generator[None]:
    """Calls `watcher` before each operation; what it raises, the operation fails with."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _announce(kind: Kind, path: Path) -> None:
    for watcher in _watchers:
        watcher(Operation(kind, path))


def free_bytes(place: Path) -> int:
    """What the disk that holds the path, or will, has left for this user."""
    there = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def need_room(place: Path, needed: int) -> None:
    """Raises DiskFullError where fewer bytes than that are free."""
    if free_bytes(place) < needed:
        raise _disk_full(place, needed)


def _disk_full(place: Path, needed: int, number: int = errno.ENOSPC) -> DiskFullError:
    if number == getattr(errno, "EDQUOT", None):
        wanted = f" (it needs {needed:,} bytes)" if needed else ""
        return DiskFullError(
            f"{place} can't be written: your quota on this disk is used up{wanted}. Remove files of yours "
            "there, or ask for a larger quota."
        )
    try:
        free = f"{free_bytes(place):,} bytes are free"
    except OSError as error:
        free = f"how many are free can't be told ({error.strerror})"
    wanted = f"it needs {needed:,} bytes and " if needed else ""
    return DiskFullError(
        f"{place} can't be written, the disk is full: {wanted}{free}. Free some space there."
    )


@contextlib.contextmanager
def _told_of_room(place: Path, needed: int) -> Generator[None]:
    """Gives a full disk's error the bytes needed and free, and a library's error its errno."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise _disk_full(place, needed, error.errno or errno.ENOSPC) from error
        raise
    except Exception as error:
        # Rust's libraries (safetensors, tokenizers) have exceptions of their own for the system's errors.
        found = _SYSTEM_ERROR.search(str(error))
        if found is None:
            raise
        number = int(found[1])
        if number in _NO_ROOM:
            raise _disk_full(place, needed, number) from error
        raise OSError(number, os.strerror(number), str(place)) from error


def temporary_for(path: Path) -> Path:
    """Where the content of `path` is written first: in the same folder, told apart by process."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def leftovers(folder: Path) -> Iterator[Path]:
    """What a process that was killed left of files and folders it was about to publish."""
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if _LEFTOVER.fullmatch(path.name))


def write_atomic(path: Path, data: bytes) -> None:
    """Puts `data` at `path`: afterwards, or after a crash, the old content or the new is there whole."""
    temporary = temporary_for(path)
    with _told_of_room(path, len(data)):
        try:
            _announce("write", temporary)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                _announce("sync", temporary)
                os.fsync(file.fileno())
            _replace(temporary, path)
        except BaseException:
            discard(temporary)
            raise


def append_line(path: Path, line: bytes) -> None:
    """Adds one line to the file, on disk when this returns; a failed write leaves no part of it."""
    if b"\n" in line:
        raise AssertionError("a line holds no line break")
    is_new = not path.exists()
    with _told_of_room(path, len(line) + 1):
        _announce("write", path)
        with path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                _write_all(file.fileno(), line + b"\n")
                _announce("sync", path)
                os.fsync(file.fileno())
            except BaseException:
                # Half a line would swallow the next one, and one that is not on disk was not written.
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise
        if is_new:
            _sync(path.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes everything; a full disk may take a part first and refuse the rest."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_whole(path: Path, max_bytes: int | None = None) -> bytes:
    """What a regular file holds; OSError for a larger one, or a pipe or device, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if max_bytes is not None and status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"is larger than {max_bytes:,} bytes", str(path))
        return file.read()


def complete_lines(path: Path) -> list[bytes]:
    """The file's lines without a last one that has no end yet; empty where there is no file."""
    try:
        data = read_whole(path)
    except FileNotFoundError:
        return []
    return data.split(b"\n")[:-1]


@contextlib.contextmanager
def staged(final: Path) -> Generator[Path]:
    """A folder to write into that is published as `final` when the block ends, or is gone again.

    Readers find `final` whole or not at all, whatever library wrote it.
    """
    staging = final.with_name(f".{final.name}.partial")
    discard(staging)
    try:
        make_folder(staging)
        yield staging
        publish_folder(staging, final)
    finally:
        discard(staging)


@contextlib.contextmanager
def staged_file(final: Path) -> Generator[Path]:
    """A path of the same name to write to: one file, published as `staged` does a folder."""
    staging = final.with_name(f".{final.name}.partial")
    discard(staging)
    try:
        make_folder(staging)
        yield staging / final.name
        _sync(staging / final.name)
        _replace(staging / final.name, final)
    finally:
        discard(staging)


def write_by(write: Callable[[Path], object], path: Path, needed: int = 0) -> None:
    """Lets a library write a file or a folder of a staging folder, `needed` bytes of it.

    Its failures come out as those of this layer.
    """
    with _told_of_room(path, needed):
        _announce("write", path)
        write(path)


def publish_by(write: Callable[[Path], object], path: Path, needed: int = 0) -> None:
    """Lets a library write one file of `needed` bytes, which appears at `path` whole or not at all."""
    temporary = temporary_for(path)
    try:
        write_by(write, temporary, needed)
        _sync(temporary)
        _replace(temporary, path)
    finally:
        discard(temporary)


def publish_folder(staging: Path, final: Path) -> None:
    """Renames `staging` to `final` once all that is in it is on disk; a `final` of before gives way."""
    with _told_of_room(final, 0):
        for path in sorted(staging.rglob("*")):
            _sync(path)
        _sync(staging)
        if not final.exists():
            _replace(staging, final)
            return
        old = temporary_for(final)
        discard(old)
        _replace(final, old)
        _replace(staging, final)
        discard(old)


def make_folder(path: Path) -> None:
    """Makes the folder and those above it, on disk; fine where it is there."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    with _told_of_room(path, 0):
        _announce("make", path)
        path.mkdir(exist_ok=True)
        _sync(path.parent)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it; fine where there is none.

    A folder is renamed first, so that a crash on the way leaves no part of it under its name.
    """
    if path.is_dir() and not path.is_symlink():
        aside = path if _LEFTOVER.fullmatch(path.name) else temporary_for(path)
        if aside != path:
            discard(aside)
            _replace(path, aside)
        _announce("remove", aside)
        shutil.rmtree(aside)
    else:
        _announce("remove", path)
        path.unlink(missing_ok=True)
    if path.parent.is_dir():
        _sync(path.parent)


def discard(path: Path) -> None:
    """Removes what was never published; where that fails it stays, to be removed another time."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _replace(source: Path, target: Path) -> None:
    """Renames, and flushes the folder, without which a power loss may undo the name."""
    _announce("replace", target)
    os.replace(source, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    """Flushes a file or a folder to disk; Windows opens no folders and needs none flushed."""
    if os.name == "nt" and path.is_dir():
        return
    _announce("sync", path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
