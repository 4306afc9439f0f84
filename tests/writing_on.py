"""Writing on in a run that a store has written, as a resume does."""

import contextlib
from collections.abc import Generator
from pathlib import Path

from muster.store import RunStore


@contextlib.contextmanager
def set_back(folder: Path, step: int) -> Generator[RunStore]:
    """The run as it was after this step, for its next writer."""
    with RunStore.take(folder) as store:
        store.drop_after(step)
        yield store
