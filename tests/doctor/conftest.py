"""The runs that were trained with a fault each, and the healthy ones, unpacked once."""

import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import view_runs
from muster.doctor import Course, course_of

ARCHIVE = Path(__file__).parent.parent / "fixtures" / "broken_runs.tar.xz"


@pytest.fixture(scope="session")
def recorded_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs; `tests/fixtures/make_broken_runs.py` trained them, and one is as TRL leaves it."""
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    view_runs.write_trl_run(folder / "trl-out", 24)
    return folder


@pytest.fixture(scope="session")
def course_in(recorded_runs: Path) -> Callable[[str], Course]:
    """A recorded run as the rules see it, by its name; nobody writes there, so each is read once."""
    return cache(lambda name: course_of(recorded_runs / name))
