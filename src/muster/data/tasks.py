"""Rows of a task that is made where it is needed."""

from collections.abc import Iterator

from muster.data.problems import Row
from muster.tasks import make_rows


def read_made(spec: str) -> Iterator[Row]:
    """The rows of the task, in its order."""
    for number, values in enumerate(make_rows(spec), start=1):
        yield Row(f"row {number}", values)
