"""Checkpoints: whole or passed over, kept as many as asked, and never a foreign thing touched."""

import json
import math
from pathlib import Path

import pytest
import torch

from muster.checkpoint import (
    Checkpoint,
    best,
    damage,
    find,
    load,
    put_weights,
    retire,
    save,
)
from muster.errors import CheckpointError, DiskFullError
from muster.files import watched
from tiny import tiny_policy

FILES = ("weights.safetensors", "optimizer.safetensors", "old.safetensors", "state.json", "manifest.json")


def sample(value: float = 1.0) -> Checkpoint:
    weights = {"a": torch.full((3, 2), value), "b": torch.arange(4.0)}
    return Checkpoint(
        weights=weights,
        optimizer={"a/exp_avg": torch.ones(3, 2), "a/step": torch.tensor(2.0)},
        old={"a": torch.zeros(3, 2), "b": torch.zeros(4)},
        state={"step": 1, "drawn": 7},
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_what_is_loaded(tmp_path):
    path = save(tmp_path, 12, sample())
    assert path == tmp_path / "000012"
    assert names(path) == sorted(FILES)
    again = load(path, torch.device("cpu"))
    assert torch.equal(again.weights["a"], sample().weights["a"])
    assert again.optimizer["a/step"].item() == 2.0
    assert again.old is not None
    assert torch.equal(again.old["b"], torch.zeros(4))
    assert again.state == {"step": 1, "drawn": 7}
    assert load(save(tmp_path, 13, sample_without_old()), torch.device("cpu")).old is None


def sample_without_old() -> Checkpoint:
    whole = sample()
    return Checkpoint(weights=whole.weights, optimizer={}, old=None, state=whole.state)


def harm(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "half":
        path.write_bytes(data[: len(data) // 2])
    elif how == "longer":
        path.write_bytes(data + b"\0")
    else:
        # In the manifest a flipped space would change nothing; the first digit of a hash does.
        place = data.index(b'"sha256": "') + 11 if path.name == "manifest.json" else len(data) - 3
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "half", "longer", "flipped"])
def test_a_damaged_checkpoint_is_passed_over_with_the_reason(tmp_path, name, how):  # B50, P3
    save(tmp_path, 1, sample())
    save(tmp_path, 2, sample(2.0))
    harm(tmp_path / "000002" / name, how)
    found, skipped = find(tmp_path)
    assert found == tmp_path / "000001"
    [reason] = skipped
    assert reason.startswith("000002: ")
    assert (name in reason) or name == "manifest.json"


def test_a_manifest_that_names_too_little_is_no_checkpoint(tmp_path):
    path = save(tmp_path, 2, sample())
    manifest = json.loads((path / "manifest.json").read_text())
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        fewer = {key: value for key, value in manifest["files"].items() if key != name}
        (path / "manifest.json").write_text(json.dumps({**manifest, "files": fewer}))
        assert damage(path) == f"its manifest names no {name}"
    for broken in (
        [],
        {},
        {"format": "new"},
        {**manifest, "files": []},
        {**manifest, "files": {"state.json": 1}},
    ):
        (path / "manifest.json").write_text(json.dumps(broken))
        assert damage(path) is not None


def test_a_newer_format_and_a_renamed_folder_are_passed_over(tmp_path):
    path = save(tmp_path, 2, sample())
    assert damage(path) is None
    renamed = path.rename(tmp_path / "000009")
    assert damage(renamed) == "its manifest is that of step 2"
    manifest = json.loads((renamed / "manifest.json").read_text())
    (renamed / "manifest.json").write_text(json.dumps({**manifest, "format": 3}))
    assert "upgrade Muster" in str(damage(renamed))
    assert find(tmp_path)[0] is None


def test_a_path_out_of_the_folder_is_not_followed(tmp_path):
    path = save(tmp_path, 2, sample())
    manifest = json.loads((path / "manifest.json").read_text())
    (tmp_path / "secret").write_text("x")
    files = {**manifest["files"], "../secret": manifest["files"]["state.json"]}
    (path / "manifest.json").write_text(json.dumps({**manifest, "files": files}))
    assert damage(path) is not None


def test_empty_and_absent_folders_hold_nothing(tmp_path):
    assert find(tmp_path / "none") == (None, [])
    (tmp_path / "000003").mkdir()
    assert find(tmp_path) == (None, ["000003: it has no manifest: saving was interrupted"])


def save_and_keep(folder: Path, step: int, keep: int, spared=()) -> list[str]:
    save(folder, step, sample())
    return retire(folder, step, keep, spared)


def test_the_newest_are_kept_and_older_ones_go(tmp_path):  # P6
    for step in range(1, 6):
        save_and_keep(tmp_path, step, 2)
    assert names(tmp_path) == ["000004", "000005"]
    save_and_keep(tmp_path, 6, 1)
    assert names(tmp_path) == ["000006"]
    save_and_keep(tmp_path, 7, 0)
    assert names(tmp_path) == ["000006", "000007"]


def test_the_spared_stay_beside_the_newest(tmp_path):  # P6
    for step in range(1, 7):
        save_and_keep(tmp_path, step, 2, spared={2})
    assert names(tmp_path) == ["000002", "000005", "000006"]


def test_the_best_is_the_first_whole_one_of_the_highest_held_out_reward(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, sample())
    held_out = {0: 9.0, 1: 0.5, 2: 0.7, 3: 0.7, 7: 1.0}
    assert best(tmp_path, held_out) == tmp_path / "000002"
    (tmp_path / "000002" / "weights.safetensors").unlink()
    assert best(tmp_path, held_out) == tmp_path / "000003"
    assert best(tmp_path, {0: 9.0}) is None


def test_one_that_can_not_be_removed_is_named_and_the_rest_goes(tmp_path):  # B56
    for step in (1, 2, 3):
        save(tmp_path, step, sample())

    def busy(operation):
        if operation.path.name == "000001" or "000001" in operation.path.name:
            raise OSError(16, "Device or resource busy")

    with watched(busy):
        [said] = retire(tmp_path, 3, 1)
    assert "checkpoint 000001 could not be removed" in said
    assert names(tmp_path) == ["000001", "000003"]


def test_a_checkpoint_with_a_file_of_someone_else_in_it_is_left_alone(tmp_path):  # P6
    for step in (1, 2, 3):
        save(tmp_path, step, sample())
    (tmp_path / "000001" / "notes.txt").write_text("the good one")
    retire(tmp_path, 3, 1)
    assert names(tmp_path) == ["000001", "000003"]


def test_a_damaged_checkpoint_stands_in_for_no_good_one(tmp_path):
    """Resumed from 2 past a broken 3, the next save must not count 3 as one of those that are kept."""
    for step in (1, 2, 3):
        save(tmp_path, step, sample())
    (tmp_path / "000003" / "state.json").unlink()
    save_and_keep(tmp_path, 4, 2)
    assert names(tmp_path) == ["000002", "000003", "000004"]
    later = tmp_path / "000009"
    later.mkdir()
    save_and_keep(tmp_path, 5, 1)
    assert find(tmp_path) == (tmp_path / "000005", ["000009: it has no manifest: saving was interrupted"])


def test_what_is_not_a_checkpoint_is_never_removed(tmp_path):
    foreign = ["000000", "1", "notes", "²", "best", "1.bak"]
    for name in foreign:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("keep")
    (tmp_path / "7").write_text("a file")
    for step in (2, 3, 4):
        save_and_keep(tmp_path, step, 1)
    assert set(names(tmp_path)) == {*foreign, "7", "000004"}
    assert find(tmp_path)[0] == tmp_path / "000004"


def test_a_save_that_fails_leaves_what_was_there(tmp_path):  # B51, P5
    save(tmp_path, 1, sample())

    def full(operation):
        raise OSError(28, "No space left on device")

    with watched(full), pytest.raises(DiskFullError, match="disk is full"):
        save(tmp_path, 2, sample())
    assert names(tmp_path) == ["000001"]
    assert damage(tmp_path / "000001") is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["weights", "optimizer", "old"])
def test_what_is_not_finite_is_never_saved(tmp_path, bad, part):  # B55, P14
    save(tmp_path, 1, sample())
    whole = sample()
    parts = {name: dict(getattr(whole, name)) for name in ("weights", "optimizer", "old")}
    parts[part] = {**parts[part], "a": torch.tensor([1.0, bad])}
    with pytest.raises(CheckpointError, match=f"a in {part}"):
        save(tmp_path, 2, Checkpoint(**parts, state={}))
    assert names(tmp_path) == ["000001"]


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 1, sample(1.0))
    save(tmp_path, 1, sample(5.0))
    assert names(tmp_path) == ["000001"]
    assert load(tmp_path / "000001", torch.device("cpu")).weights["a"][0, 0] == 5.0


def test_weights_of_another_model_are_refused_and_none_is_changed():
    policy = tiny_policy()
    params = dict(policy.trainable())
    before = policy.snapshot()
    weights = {name: torch.zeros_like(param) for name, param in params.items()}
    name = next(iter(weights))
    others = [
        {key: value for key, value in weights.items() if key != name},
        {**weights, "extra": torch.zeros(1)},
        {**weights, name: torch.zeros(1, 1)},  # would spread over the whole matrix
    ]
    for other in others:
        with pytest.raises(CheckpointError, match="differ in their trainable parameters"):
            put_weights(params, other, Path("somewhere"))
    assert all(torch.equal(params[key], before[key]) for key in before)


def test_only_safetensors_and_json_are_written(tmp_path):  # B72, P23
    save(tmp_path, 1, sample())
    assert {path.suffix for path in (tmp_path / "000001").iterdir()} == {".safetensors", ".json"}
