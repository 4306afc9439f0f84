"""Rows from CSV, JSON lines, JSON and Parquet files, each with the place a person finds it at."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow
import pyarrow.parquet

from muster.data.files import checked_file, text_lines, whole_text
from muster.data.problems import Problems, Row
from muster.data.values import MAX_FIELD_CHARS
from muster.errors import DataError

MAX_REMARKS = 5
"""About one row."""
MAX_COLUMNS = 10_000
"""Most columns of a file."""
MAX_ROWS = 10_000_000
"""Most rows of a file; every one becomes a sample that is held in memory."""
MAX_UNPACKED_BYTES = 2**31
"""Most that a Parquet file may unpack to: a few bytes in it can stand for any number of rows."""
_PARQUET_BATCH = 128
"""Rows unpacked at once; each may have a field of the largest size."""


def read_file(path: Path, problems: Problems) -> list[Row]:
    """The rows of a file; what is wrong with single rows goes to `problems`."""
    read = _READERS[checked_file(path).suffix.lower()]
    rows: list[Row] = []
    for row in read(path, problems):
        if len(rows) >= MAX_ROWS:
            raise DataError(f"{path}: has more than {MAX_ROWS:,} rows. Split it, or take a part of it.")
        rows.append(row)
    return rows


def _csv_rows(path: Path, problems: Problems) -> Iterator[Row]:
    """One row per record; an empty cell is None, since CSV can't say it otherwise; cells stay text."""
    before = csv.field_size_limit(MAX_FIELD_CHARS)
    reader = csv.reader(text_lines(path), strict=True)
    try:
        header = next(reader, [])
        _check_names(header, problems)
        last = reader.line_num
        for cells in reader:
            place, last = f"line {last + 1}", reader.line_num
            if cells and len(cells) != len(header):
                problems.add(place, f"has {len(cells)} cells, but the header names {len(header)} columns")
            elif cells:
                yield Row(place, {name: cell or None for name, cell in zip(header, cells)})
    except csv.Error as error:
        problems.add(f"line {reader.line_num}", f"is not CSV: {error}")
    finally:
        csv.field_size_limit(before)


def _json_lines_rows(path: Path, problems: Problems) -> Iterator[Row]:
    """One row per line that isn't blank."""
    decoder = _Decoder()
    for number, line in enumerate(text_lines(path), start=1):
        text = line.strip()
        if not text:
            continue
        place = f"line {number}"
        try:
            value, end = decoder.decode(text, 0)
        except ValueError as error:
            problems.add(place, str(error))
            continue
        if text[end:].strip():
            problems.add(
                place, f"goes on after its JSON value: {text[end:].strip()[:30]!r}. One object per line"
            )
        else:
            yield from _object_row(place, value, decoder, problems)


def _json_rows(path: Path, problems: Problems) -> Iterator[Row]:
    """One row per object of the file's list; a file of objects one after the other works too."""
    text = whole_text(path)
    decoder = _Decoder()
    position = _skip(text, 0)
    is_list = text[position : position + 1] == "["
    position = _skip(text, position + 1) if is_list else position
    line, counted = 1, 0
    while position < len(text) and not (is_list and text[position] == "]"):
        line, counted = line + text.count("\n", counted, position), position
        place = f"line {line}"
        try:
            value, end = decoder.decode(text, position)
        except ValueError as error:
            problems.add(place, str(error))
            return
        yield from _object_row(place, value, decoder, problems)
        position = _skip(text, end)
        if is_list:
            if text[position : position + 1] not in (",", "]"):
                problems.add(place, "is not followed by ',' or ']'")
                return
            position = _skip(text, position + 1) if text[position] == "," else position
    if is_list and text[position:].strip() != "]":
        problems.add("end of file", "the list of rows is not closed by one ']'")


def _parquet_rows(path: Path, problems: Problems) -> Iterator[Row]:
    """One row per row of the table, read a batch at a time."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_names(file.schema_arrow.names, problems)
            number = size = 0
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH):
                rows = batch.to_pylist() if size + batch.nbytes <= MAX_UNPACKED_BYTES else []
                # Of a text that many rows share, the batch counts one copy.
                size += max(batch.nbytes, _num_chars(rows))
                if size > MAX_UNPACKED_BYTES:
                    raise DataError(
                        f"{path}, row {number + 1}: unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB. "
                        "Split the file, or leave out columns that nothing reads."
                    )
                for values in rows:
                    number += 1
                    yield Row(f"row {number}", values)
    except DataError:
        raise
    except (pyarrow.ArrowException, MemoryError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{path}: can't be read as Parquet: {reason}.") from error


def _num_chars(rows: list[dict[str, object]]) -> int:
    """Characters of all texts that are values of columns."""
    return sum(len(value) for row in rows for value in row.values() if isinstance(value, str))


def _check_names(names: list[str], problems: Problems) -> None:
    """Refuses a header whose columns can't be told apart."""
    if len(names) > MAX_COLUMNS:
        problems.add("header", f"has {len(names):,} columns; at most {MAX_COLUMNS:,} are read")
        problems.refuse_if_any()
    for name, times in Counter(names).items():
        if times > 1:
            problems.add("header", f"column {name!r} appears {times} times. Give each column its own name")
        elif not name.strip():
            problems.add("header", f"column {names.index(name) + 1} has no name")
    problems.refuse_if_any()


def _object_row(place: str, value: object, decoder: "_Decoder", problems: Problems) -> Iterator[Row]:
    """The row, where the value is an object without anything that a parser would fold silently."""
    for remark in decoder.remarks[:MAX_REMARKS]:
        problems.add(place, remark)
    if not isinstance(value, dict):
        problems.add(place, f'is not an object but {type(value).__name__}. Write {{"prompt": ...}}')
    elif len(value) > MAX_COLUMNS:
        problems.add(place, f"has {len(value):,} columns; at most {MAX_COLUMNS:,} are read")
    elif not decoder.remarks:
        yield Row(place, value)


def _skip(text: str, position: int) -> int:
    """The next position that isn't white space."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


class _Decoder:
    """JSON values out of a text, with what Python's parser would pass over in `remarks`."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self._json = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=self._constant)

    def decode(self, text: str, start: int) -> tuple[object, int]:
        """The value that starts at a position, and where it ends; ValueError says why there is none."""
        self.remarks.clear()
        try:
            return self._json.raw_decode(text, start)
        except json.JSONDecodeError as error:
            # What comes before the value is white space and other rows: count from the line's own start.
            column = error.pos - text.rfind("\n", 0, error.pos)
            raise ValueError(f"is not JSON: {error.msg}, column {column}") from error
        except RecursionError as error:
            raise ValueError("is nested too deeply to be read") from error

    def _object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        if len(made) < len(pairs):
            twice = (item for item in Counter(key for key, _ in pairs).items() if item[1] > 1)
            for key, times in islice(twice, MAX_REMARKS):
                self.remarks.append(f"key {key!r} appears {times} times in one object. Keep one of them")
        return made

    def _constant(self, name: str) -> object:
        # Some writers spell a missing number NaN; infinities have no such reading.
        if name != "NaN":
            self.remarks.append(f"{name} is not JSON. Use a number or null")
        return None


_READERS: dict[str, Callable[[Path, Problems], Iterator[Row]]] = {
    ".csv": _csv_rows,
    ".jsonl": _json_lines_rows,
    ".ndjson": _json_lines_rows,
    ".json": _json_rows,
    ".parquet": _parquet_rows,
}
