"""What a person means by RUN or MODEL."""

import contextlib
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from muster.errors import CheckpointError, ConfigError, MusterError
from muster.nearest import did_you_mean
from muster.view.sources import Source, source_of

RUNS = Path("runs")


def run_folder(target: str) -> Path | None:
    """The folder of the run of this name or path; None where there is no such run."""
    for folder in (Path(target), RUNS / target):
        if (folder / "meta.json").is_file():
            return folder
    return None


def needed_run_folder(target: str) -> Path:
    """The folder of the run of this name or path; refuses what is none, with the runs there are."""
    folder = run_folder(target)
    if folder is None:
        names = _names()
        there = f"Runs in {RUNS}: {', '.join(names)}." if names else f"There are no runs in {RUNS}."
        raise ConfigError(
            f"{target} is no run: neither it nor {RUNS / target} holds a meta.json."
            f"{did_you_mean(target, names)} {there}"
        )
    return folder


def needed_source(target: str) -> Source:
    """The run of this name or path, whoever wrote it; refuses what is none, with the runs there are."""
    for folder in (run_folder(target), Path(target), RUNS / target):
        if folder is not None and (source := source_of(folder)) is not None:
            return replace(source, folder=folder)
    # A folder of no kind is refused as any command does.
    return Source("", target, needed_run_folder(target), "muster")


@contextlib.contextmanager
def readable(folder: Path) -> Generator[None]:
    """Runs what reads a run; where its files hold what no run wrote, the error says so by its folder."""
    try:
        yield
    except MusterError:
        raise
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder} holds what no run wrote ({type(error).__name__}: {error}). Restore its files."
        ) from error


def run_of_checkpoint(target: str) -> Path | None:
    """The run that a path inside its folder (`final`, `checkpoints/000050`) belongs to; else None."""
    parents = Path(target).absolute().parents
    return next((folder for folder in parents[:2] if (folder / "meta.json").is_file()), None)


def model_of(target: str) -> str:
    """The model to load: a run by its folder, whose newest whole weights are then taken; else as it is."""
    folder = run_folder(target)
    if folder is None and not Path(target).exists() and (near := did_you_mean(target, _names())):
        raise ConfigError(f"{target} is no run and no folder.{near}")
    return target if folder is None else str(folder)


def _names() -> list[str]:
    return sorted(path.parent.name for path in RUNS.glob("*/meta.json"))
