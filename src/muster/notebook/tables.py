"""A run's rows and numbers as arrow tables, whoever wrote the run."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from muster.errors import ConfigError
from muster.store import Line
from muster.view.curves import number_of
from muster.view.samples import loaded
from muster.view.tables import lengths_of

if TYPE_CHECKING:
    from pandas import DataFrame

LIGHT = (
    "group_id", "index", "sample_id", "sample", "prompt_text", "completion_text", "finish_reason", "version",
    "score", "parts", "failures", "reward", "advantage", "episode",
)  # fmt: skip
"""Columns of a rollout that are not per token."""
TOKENS = (
    "prompt_ids", "completion_ids", "emitted", "mask", "sampler_logprobs", "old_logprobs", "ref_logprobs",
    "logprobs", "entropy",
)  # fmt: skip


def numbers_table(columns: Mapping[str, Sequence[float | None]]) -> pa.Table:
    """The columns as a table: `step` in whole numbers, first; all else as floats."""
    steps = pa.array([None if step is None else int(step) for step in columns.get("step", ())], pa.int64())
    rest = {name: pa.array(values, pa.float64()) for name, values in columns.items() if name != "step"}
    return pa.table({"step": steps, **rest})


def rows_table(rows: Sequence[Line]) -> pa.Table:
    """Rows as another trainer's files give them."""
    return pa.Table.from_pylist(list(rows))


def rollouts_table(step: int, table: pa.Table, *, tokens: bool) -> pa.Table:
    """A row per rollout of a step, with `step` first and a column `rewards/NAME` for each reward."""
    wanted = (*LIGHT, *(TOKENS if tokens else ()))
    columns = {name: table[name] for name in wanted if name in table.column_names and name != "parts"}
    if "completion_ids" in table.column_names:
        columns["length"] = lengths_of(table).cast(pa.int64())
    parts = [loaded(text) for text in table["parts"].to_pylist()] if "parts" in table.column_names else []
    for name in dict.fromkeys(key for row in parts for key in row):
        values = [number_of(row.get(name)) for row in parts]
        columns[f"rewards/{name}"] = pa.chunked_array([pa.array(values, pa.float64())])
    return pa.table({"step": pa.array([step] * table.num_rows, pa.int64()), **columns})


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all; a column that some lack is empty there."""
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({"step": []})


def frame(table: pa.Table) -> "DataFrame":
    """The table as a pandas DataFrame; ConfigError names what to install where there is no pandas."""
    if importlib.util.find_spec("pandas") is None:
        raise ConfigError(
            'a DataFrame needs pandas, which is not installed: pip install "muster-rl[pandas]". '
            "Without it, take the Arrow table: the same name without `_frame`."
        )
    return table.to_pandas()
