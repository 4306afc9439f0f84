"""Runs of these tests have the processes that sample for them forked, and start from a saved tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from beside import forked
from muster.engines.process import started_by
from tiny import save_tiny_model


@pytest.fixture(autouse=True, scope="session")
def _forked_samplers() -> Iterator[None]:
    with started_by(forked):
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the model."""
    folder = tmp_path_factory.mktemp("runs")
    save_tiny_model(folder / "model")
    return folder
