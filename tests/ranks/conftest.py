"""A saved tiny model that the runs of these tests start from."""

from pathlib import Path

import pytest

from tiny import save_tiny_model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the model."""
    folder = tmp_path_factory.mktemp("ranks")
    save_tiny_model(folder / "model")
    return folder
