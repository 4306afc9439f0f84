"""Recorded runs to regrade, each trained once."""

import shutil
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from muster.run import run
from tiny import save_tiny_model
from toy_run import config_for

TWO = {"use": ["toy_rewards:low_bytes", "regrade_rewards:short"], "weights": [1.0, 0.5]}
SECTIONS = {
    # Two updates a step, the second off policy by a large step: tokens are clipped.
    "clipped": {"algo": {"minibatches": 2}, "optim": {"lr": 0.02}, "reward": TWO},
    "kl": {"algo": {"kl_coef": 0.05, "kl_in": "reward"}},
    "resampled": {
        "algo": {"recipe": "dapo", "resample": 1, "passes": 2},
        "reward": {"use": ["regrade_rewards:first_low"]},
        "sampling": {"group_size": 2},
    },
}


@pytest.fixture(scope="session")
def _recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every run."""
    folder = tmp_path_factory.mktemp("regraded")
    save_tiny_model(folder / "model")
    for name, sections in SECTIONS.items():
        named = {**sections, "run": {"name": name}}
        # Not to its end: the exported model is no part of this.
        with closing(run(config_for(folder, folder / "runs", **named))) as steps:
            assert [report.step for report in islice(steps, 4)] == [1, 2, 3, 4]
    return folder / "runs"


@pytest.fixture
def recorded(_recorded: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the run of this name, without what regrading has no use for."""

    def copy(name: str) -> Path:
        unused = shutil.ignore_patterns("checkpoints", "final", "lock")
        return Path(shutil.copytree(_recorded / name, tmp_path / name, ignore=unused, dirs_exist_ok=True))

    return copy
