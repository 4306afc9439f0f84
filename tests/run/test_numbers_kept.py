"""Numbers that cannot rot: what is not finite reaches no checkpoint, and evaluation changes no byte."""

import math
from pathlib import Path

import pytest
import torch

from killing import content
from muster import checkpoint
from muster.errors import TrainingError
from muster.run import Watchers, run
from muster.store import read_events, read_metrics
from toy_run import config_for

PLAIN = {"options": {"products": "linear"}}


def test_evaluation_changes_no_byte_of_training(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """P18: weights, optimizer, rollouts and metrics are those of the run that never looked."""
    found = []
    for name, every in (("with", 1), ("without", 0)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        held_out = {"eval": {"every": 1, "group_size": 2}} if every else {}
        list(run(config_for(place, Path("runs"), engine=PLAIN, run={"steps": 3, "keep": 9}, **held_out)))
        folder = tmp_path / name / "runs" / "toy"
        files = content(folder)
        kept = {key: files[key] for key in files if key.startswith(("rollouts", "checkpoints"))}
        kept |= {"model": files["final/model.safetensors"]}
        lines = [
            {key: value for key, value in line.items() if not key.startswith("eval_")}
            for line in read_metrics(folder)
            if line["step"]
        ]
        found.append((kept, lines))
    assert found[0] == found[1]
    assert len(found[0][1]) == 3


def test_a_gradient_that_is_never_finite_ends_the_run_and_names_the_checkpoint_that_stands(
    place: Path, tmp_path: Path
):  # B55, P14
    said: list[str] = []
    config = config_for(
        place,
        tmp_path,
        engine=PLAIN,
        algo={"entropy_coef": 1e38},
        optim={"max_skipped": 1, "max_grad_norm": 1.0},
        run={"save_every": 1, "keep": 9},
    )
    with pytest.raises(TrainingError, match="updates in a row had no finite gradient"):
        list(run(config, watchers=Watchers(say=said.append)))
    folder = tmp_path / "toy"
    assert read_events(folder)[-1]["kind"] == "failure"
    found, skipped = checkpoint.find(folder / "checkpoints")
    assert found is not None
    assert skipped == []
    assert said[-1] == f"Checkpoint {found.name} stands: --resume goes on from it."
    saved = checkpoint.load(found, torch.device("cpu"))
    assert all(
        torch.isfinite(tensor).all() for tensor in (*saved.weights.values(), *saved.optimizer.values())
    )
    for line in read_metrics(folder):
        numbers = [value for value in line.values() if isinstance(value, float)]
        assert all(map(math.isfinite, numbers)), "null where there is no number"
