"""Finding and opening data files: what is refused before a byte is parsed, and text read in bounded lines."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from muster.errors import DataError
from muster.nearest import did_you_mean

SUFFIXES = (".csv", ".jsonl", ".ndjson", ".json", ".parquet")
MAX_LINE_BYTES = 64 * 2**20
"""Longest line of a text file: a row of JSON lines, or one line of a CSV row."""
MAX_JSON_BYTES = 64 * 2**20
"""Largest JSON file: it is read whole, unlike JSON lines."""

_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def checked_file(path: Path) -> Path:
    """The path, known to be a regular file that isn't empty or packed."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise DataError(_missing(path, error)) from error
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"{path}: is a folder. Name one file in it: {', '.join(SUFFIXES)}.")
    if not stat.S_ISREG(status.st_mode):
        raise DataError(
            f"{path}: is not a regular file (a pipe, a socket or a device). Save the data to a file."
        )
    if status.st_size == 0:
        raise DataError(f"{path}: is empty. It needs at least one row.")
    with path.open("rb") as file:
        start = file.read(8)
    for magic, kind in _PACKED.items():
        if start.startswith(magic):
            raise DataError(f"{path}: is packed with {kind}. Unpack it first, or save it as Parquet.")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: has the ending {path.suffix!r}; known: {', '.join(SUFFIXES)}. Rename or convert it."
        )
    return path


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their ends; a byte order mark at its start is skipped."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise DataError(f"{path}, line {number}: is longer than {MAX_LINE_BYTES // 2**20} MiB.")
            yield _decoded(path, number, offset, line)
            offset += len(line)


def whole_text(path: Path) -> str:
    """The text of a file that has to be read at once."""
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise DataError(
            f"{path}: has {size // 2**20} MiB; a JSON file may have {MAX_JSON_BYTES // 2**20} MiB, since it "
            "is read at once. Save it as JSON lines (.jsonl) or Parquet."
        )
    return _decoded(path, 1, 0, path.read_bytes())


def _decoded(path: Path, number: int, offset: int, content: bytes) -> str:
    """The text of what stands in the file from this line and byte on."""
    if number == 1 and content.startswith(_UTF16):
        raise DataError(f"{path}: is UTF-16. Save it as UTF-8.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = number + content.count(b"\n", 0, error.start)
        raise DataError(
            f"{path}, line {line}: byte {offset + error.start} (0x{content[error.start]:02x}) is not UTF-8. "
            "Save the file as UTF-8."
        ) from error
    return text.removeprefix("\ufeff") if number == 1 else text


def _missing(path: Path, error: Exception) -> str:
    """Why there is no such file, and the nearest one that there is."""
    if not isinstance(error, FileNotFoundError):
        return f"{str(path)!r}: can't be opened: {error}."
    try:
        siblings = os.listdir(path.parent)
    except OSError:
        return f"{path}: there is no such file, and no folder {path.parent}."
    return f"{path}: there is no such file.{did_you_mean(path.name, siblings)}"
