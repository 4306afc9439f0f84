"""Rows of a data set on the hub; the library `datasets` is an extra and is imported only here."""

import importlib
from collections.abc import Iterator

from muster.data.problems import Row
from muster.errors import DataError


def read_hub(dataset: str, subset: str | None, split: str) -> Iterator[Row]:
    """The rows of one split, in its order."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            f"{dataset!r} is no file here, so it is taken for a data set on the hub, which needs the extra "
            f"`hub`: pip install 'muster-rl[hub]' ({error})."
        ) from error
    try:
        rows = datasets.load_dataset(dataset, name=subset, split=split)
    except Exception as error:
        # Whatever the network, the hub or the data set's own files raise: the boundary's name is what helps.
        where = f"subset {subset!r}, split {split!r}" if subset else f"split {split!r}"
        raise DataError(
            f"{dataset}: the data set ({where}) can't be loaded from the hub: {type(error).__name__}: {error}"
        ) from error
    for number, values in enumerate(rows, start=1):
        yield Row(f"row {number}", dict(values))
