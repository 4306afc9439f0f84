"""Files that grow while they are read: each look parses only what is new."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pydantic_core

from muster.store import Line

MAX_LINE_BYTES = 32 * 2**20
"""A longer line is counted as broken instead of being held in memory as objects."""


class GrowingLines:
    """The lines of a file of JSON objects that a run may still be writing."""

    def __init__(self, path: Path, keep: Callable[[Line], Line | None] = lambda line: line) -> None:
        """`keep` says what of a line stays in memory; None for nothing."""
        self._path = path
        self._keep = keep
        self._inode = 0
        self._offset = 0
        self.lines: list[Line] = []
        self.generation = 0
        """Counts up when the file was written anew, as a resume does; earlier places then mean nothing."""
        self.num_broken = 0
        """Whole lines that are no JSON object, passed over."""

    def look(self) -> list[Line]:
        """All lines so far; a last one without its end is left for the next look."""
        found = regular(self._path)
        if found is None or found.st_ino != self._inode or found.st_size < self._offset:
            self._start_over(0 if found is None else found.st_ino)
        if found is not None and found.st_size > self._offset:
            self._take(found.st_size)
        return self.lines

    @property
    def modified(self) -> float:
        """When the file last changed, in seconds since 1970; 0 where there is none."""
        found = regular(self._path)
        return found.st_mtime if found else 0.0

    def _start_over(self, inode: int) -> None:
        if self._inode:
            self.generation += 1
        self._inode, self._offset, self.lines, self.num_broken = inode, 0, [], 0

    def _take(self, size: int) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(size - self._offset)
        except OSError:
            # Gone since it was looked at, or not ours to read: one run's file costs no other its place.
            return
        end = data.rfind(b"\n") + 1
        self._offset += end
        for raw in data[:end].split(b"\n")[:-1]:
            line = parsed(raw)
            if line is None:
                self.num_broken += 1
            elif (kept := self._keep(line)) is not None:
                self.lines.append(kept)


def regular(path: Path) -> os.stat_result | None:
    """What the system knows of a plain file; None for none, and for a pipe, which would be waited for."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def parsed(raw: bytes) -> Line | None:
    """The JSON object of a line, NaN and infinity as None; None for anything else."""
    if len(raw) > MAX_LINE_BYTES:
        return None
    try:
        # Several times as fast as Python's own, which takes what this refuses: NaN, and halves of surrogates.
        line = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError:
        line = _parsed_slowly(raw)
    return line if isinstance(line, dict) else None


def _parsed_slowly(raw: bytes) -> object:
    try:
        return json.loads(raw, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def read_object(path: Path, limit: int = MAX_LINE_BYTES) -> Line | None:
    """The JSON object that a small file holds; None where it holds none."""
    found = regular(path)
    if found is None or found.st_size > limit:
        return None
    try:
        return parsed(path.read_bytes())
    except OSError:
        return None
