"""Files of rollouts as arrow tables, whoever wrote them, with bounds on what is taken into memory."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from muster.errors import CheckpointError, ConfigError
from muster.store import Line
from muster.view.growing import regular

LIGHT = (
    "group_id",
    "index",
    "sample_id",
    "sample",
    "prompt_text",
    "completion_text",
    "completion_ids",
    "finish_reason",
    "version",
    "score",
    "parts",
    "failures",
    "reward",
    "advantage",
    "emitted",
    "episode",
)
"""Columns that lists need: all but what there is per token, of which only the number is taken."""

MAX_ROWS = 200_000
MAX_BYTES = 4 * 2**30
"""Of a file's columns, unpacked: a small file can unfold into more memory than there is."""


_T = TypeVar("_T")


class Cache:
    """The last few results of reading files, each as long as its file doesn't change."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[tuple[str, object], tuple[tuple[int, int], object]] = OrderedDict()

    def get(self, path: Path, key: object, read: Callable[[], _T]) -> _T:
        """What `read` gives for this file, from memory where the file is still the same."""
        found = regular(path)
        if found is None:
            raise ConfigError(f"{path.parent.name} holds no {path.name}: this step has no samples on disk.")
        stamp, name = (found.st_mtime_ns, found.st_size), (str(path), key)
        if name in self._kept and self._kept[name][0] == stamp:
            self._kept.move_to_end(name)
            return self._kept[name][1]  # pyright: ignore[reportReturnType]
        value = read()
        self._kept[name] = (stamp, value)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return value


def open_table(path: Path) -> pq.ParquetFile:
    """The file, its size looked at before its content."""
    try:
        # Not a Python file: arrow would read it in threads of its own.
        file = pq.ParquetFile(pa.BufferReader(path.read_bytes()), page_checksum_verification=True)
        meta = file.metadata
        unpacked = sum(meta.row_group(place).total_byte_size for place in range(meta.num_row_groups))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} can't be read as rollouts: {error}. Restore the file.") from error
    if meta.num_rows > MAX_ROWS or unpacked > MAX_BYTES:
        raise CheckpointError(
            f"{path} holds {meta.num_rows:,} rows and {unpacked / 2**30:.1f} GiB: more than the "
            f"{MAX_ROWS:,} rows and {MAX_BYTES // 2**30} GiB that are shown."
        )
    return file


def read_columns(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """These columns of the file, as far as it has them; all without a list."""
    file = open_table(path)
    names = set(file.schema_arrow.names)
    try:
        wanted = None if columns is None else [name for name in columns if name in names]
        return file.read(columns=wanted, use_threads=False)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} can't be read as rollouts: {error}. Restore the file.") from error


def light_rows(path: Path) -> list[Line]:
    """A row per rollout of what lists show, with `length` in place of the token ids."""
    table = read_columns(path, LIGHT)
    if missing := {"group_id", "completion_text"} - set(table.column_names):
        raise CheckpointError(f"{path} has no column {', '.join(sorted(missing))}. Restore the file.")
    if "completion_ids" in table.column_names:
        place = table.column_names.index("completion_ids")
        table = table.set_column(place, "length", lengths_of(table))
        table = table.drop_columns([name for name in ("emitted",) if name in table.column_names])
    return table.to_pylist()


def lengths_of(table: pa.Table) -> pa.ChunkedArray:
    """Tokens of each completion; of one with an environment, those that the policy emitted."""
    lengths = pc.list_value_length(table["completion_ids"])  # pyright: ignore[reportAttributeAccessIssue]
    if "emitted" not in table.column_names:
        return lengths
    own = [
        whole if one is None else sum(one)
        for one, whole in zip(table["emitted"].to_pylist(), lengths.to_pylist())
    ]
    return pa.chunked_array([pa.array(own, pa.int32())])


def row_of(table: pa.Table, row: int) -> Line:
    """One rollout with all there is about it."""
    if not 0 <= row < table.num_rows:
        raise ConfigError(f"the step holds {table.num_rows} rollouts, no number {row}.")
    return table.slice(row, 1).to_pylist()[0]
