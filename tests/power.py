"""A disk as a power loss leaves it: what was never flushed is gone, and so are names of folders not flushed.

The strictest reading of what a file system may do. A watcher of the file layer keeps, beside the real folder,
what of it is certain: a file's content as of its last fsync, a folder's names as of its last.
"""

import os
from pathlib import Path

from muster.files import Operation


class Disk:
    """What of a folder is on disk for certain, told of each operation before it is done."""

    def __init__(self, root: Path) -> None:
        """Whatever is in the folder by now is on disk."""
        self.root = root.absolute()
        self.names: dict[int, dict[str, tuple[int, bool]]] = {}
        self.contents: dict[int, bytes] = {}
        self._last: Operation | None = None
        self._known: set[int] = set()
        top = self.root.parent
        self.names[_number(top)] = _listing(top)
        for path in (self.root, *self.root.rglob("*")):
            if path.exists():
                self._flush(path)
        self._known = _numbers(self.root)

    def __call__(self, operation: Operation) -> None:
        """The operation before this one is done by now: what it has flushed is certain."""
        last, self._last = self._last, operation
        present = _numbers(self.root)
        for number in present - self._known:
            # The system gives numbers of removed files to new ones.
            self.contents.pop(number, None)
            self.names.pop(number, None)
        self._known = present
        if last is not None and last.kind == "sync" and last.path.exists():
            self._flush(last.path.absolute())

    def _flush(self, path: Path) -> None:
        if path.is_dir():
            self.names[_number(path)] = _listing(path)
        else:
            self.contents[_number(path)] = path.read_bytes()

    def lose_power(self, target: Path) -> None:
        """Writes what is certain to `target`; of a file that was never flushed, half is there."""
        halves = {_number(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        target.mkdir()
        root = self.names[_number(self.root.parent)].get(self.root.name)
        if root is not None:
            self._rebuild(root[0], target, halves)

    def _rebuild(self, folder: int, target: Path, current: dict[int, bytes]) -> None:
        for name, (number, is_folder) in self.names.get(folder, {}).items():
            if is_folder:
                (target / name).mkdir()
                self._rebuild(number, target / name, current)
            else:
                content = self.contents.get(number)
                if content is None:
                    content = current.get(number, b"")
                    content = content[: len(content) // 2]
                (target / name).write_bytes(content)


def _number(path: Path) -> int:
    return path.stat().st_ino


def _numbers(root: Path) -> set[int]:
    return {entry.inode() for entry in _entries(root)}


def _entries(root: Path) -> list[os.DirEntry[str]]:
    found: list[os.DirEntry[str]] = []
    if root.is_dir():
        for entry in os.scandir(root):
            found.append(entry)
            if entry.is_dir(follow_symlinks=False):
                found += _entries(Path(entry.path))
    return found


def _listing(folder: Path) -> dict[str, tuple[int, bool]]:
    return {entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in os.scandir(folder)}
