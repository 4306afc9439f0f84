"""A folder as a reader has it after the first steps: a starter run, trained a little, and the examples."""

import contextlib
import shutil
from pathlib import Path

import pytest

from muster.cli import main
from tiny import save_tiny_model

ROOT = Path(__file__).parents[2]
EMBEDDED = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands in for the embedded model: a model that takes milliseconds."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny-model")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """`my-run/` as `muster init` writes it, `runs/run-1` trained on it for two steps, and `examples/`."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    with contextlib.chdir(folder):
        assert main(["init", "my-run"]) == 0
        for file in [Path("my-run/run.toml"), *Path("examples").glob("*.toml")]:
            file.write_text(file.read_text().replace(EMBEDDED, str(tiny_folder)))
        small = {"run.steps": 2, "run.save_every": 1, "sampling.max_tokens": 8, "eval.prompts": 2}
        flags = [word for path, value in small.items() for word in (f"--{path}", str(value))]
        assert main(["train", "my-run/run.toml", *flags]) == 0
    return folder


@pytest.fixture
def reader(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the prepared folder, as working directory, on a terminal of 110 columns."""
    folder = tmp_path / "reader"
    shutil.copytree(prepared, folder)
    # A run's configuration holds absolute paths, and a resume compares them.
    config = folder / "runs" / "run-1" / "config.toml"
    config.write_text(config.read_text().replace(str(prepared), str(folder)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.syspath_prepend(folder)
    return folder
