"""The file layer: whatever Muster must not lose is written through these few functions.

A file is whole or absent, never torn: write beside, flush to disk, rename, flush the folder. A line
that is appended is on disk when the call returns; a crash loses at most the last one. Every operation
is announced to a watcher before it is done, so that a test can fail it, or kill the process, at any of them.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["make", "write", "sync", "replace", "remove"]


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


def temporary_for(path: Path) -> Path:
    """Where the content of `path` is written first: in the same folder, told apart by process."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_atomic(path: Path, data: bytes) -> None:
    """Puts `data` at `path`: afterwards, or after a crash, the old content or the new is there whole."""
    temporary = temporary_for(path)
    try:
        _announce("write", temporary)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            _announce("sync", temporary)
            os.fsync(file.fileno())
        _replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append_line(path: Path, line: bytes) -> None:
    """Adds one line to the file, on disk when this returns; a failed write leaves no part of it."""
    if b"\n" in line:
        raise AssertionError("a line holds no line break")
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            _announce("write", path)
            _write_all(file.fileno(), line + b"\n")
        except BaseException:
            # Half a line would swallow the next one.
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise
        _announce("sync", path)
        os.fsync(file.fileno())


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes everything; a full disk may take a part first and refuse the rest."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def complete_lines(path: Path) -> list[bytes]:
    """The file's lines without a last one that has no end yet; empty where there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return data.split(b"\n")[:-1]


def publish_folder(staging: Path, final: Path) -> None:
    """Renames `staging` to `final` once all that is in it is on disk; a `final` of before gives way."""
    for path in sorted(staging.rglob("*")):
        _sync(path)
    _sync(staging)
    if not final.exists():
        _replace(staging, final)
        return
    old = temporary_for(final)
    _replace(final, old)
    _replace(staging, final)
    remove(old)


def publish_file(staging: Path, final: Path) -> None:
    """Renames the file `staging` to `final` once it is on disk; a `final` of before is replaced."""
    _sync(staging)
    _replace(staging, final)


def make_folder(path: Path) -> None:
    """Makes the folder and those above it, on disk; fine where it is there."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    _announce("make", path)
    path.mkdir(exist_ok=True)
    _sync(path.parent)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it; fine where there is none."""
    _announce("remove", path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if path.parent.is_dir():
        _sync(path.parent)


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
