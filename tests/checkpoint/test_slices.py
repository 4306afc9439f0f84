"""Tensors by rows in several files: whatever rows are asked for, they come back."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from muster import checkpoint
from muster.checkpoint import DIVIDED, Checkpoint, damage, load, seal
from muster.errors import CheckpointError
from muster.slices import INDEX, Piece, index_of, to_plain

CPU = torch.device("cpu")
WEIGHT, BIAS = torch.arange(14.0).view(7, 2), torch.arange(3.0)
CUTS = ((0, 3), (3, 6), (6, 7))


def divided(folder: Path, *, leave_out: int | None = None) -> Path:
    """A checkpoint of step 5 in three parts: a weight of 7 rows, a bias that one holds, Adam's numbers."""
    path = folder / "000005"
    path.mkdir()
    parts = []
    for number, (low, high) in enumerate(CUTS):
        if number == leave_out:
            continue
        kinds = {
            "weights": {"w": WEIGHT[low:high], **({"b": BIAS} if number == 0 else {})},
            "optimizer": {
                "w/exp_avg": -WEIGHT[low:high],
                **({"w/step": torch.tensor(4.0)} if number == 0 else {}),
            },
        }
        pieces = {}
        for kind, tensors in kinds.items():
            file = f"{kind}-{number}.safetensors"
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / file)
            pieces[kind] = {
                name: [Piece(file, low if name.startswith("w") and tensor.ndim else 0, tuple(tensor.shape))]
                for name, tensor in tensors.items()
            }
        parts.append(pieces)
    (path / INDEX).write_text(json.dumps(to_plain(index_of(reversed(parts)))))
    files = {file.name: checkpoint.fingerprint(file) for file in path.iterdir()}
    state = Checkpoint(weights={}, optimizer={}, old=None, state={"step": 5})
    seal(path, 5, state, files, DIVIDED)
    return path


def test_one_process_reads_the_whole_of_what_several_wrote(tmp_path: Path):
    path = divided(tmp_path)
    assert damage(path) is None
    found = load(path, CPU)
    assert torch.equal(found.weights["w"], WEIGHT)
    assert torch.equal(found.weights["b"], BIAS)
    assert torch.equal(found.optimizer["w/exp_avg"], -WEIGHT)
    assert found.optimizer["w/step"] == 4.0
    assert found.old is None
    assert found.state == {"step": 5}


@pytest.mark.parametrize(
    "rows", [range(7), range(3), range(2, 5), range(1, 7), range(6, 7), range(7, 7), range(4, 4)]
)
def test_any_rows_are_read_of_whole_files_and_of_pieces(tmp_path: Path, rows: range):
    saved = Checkpoint(
        weights={"w": WEIGHT, "b": BIAS},
        optimizer={"w/exp_avg": -WEIGHT, "w/step": torch.tensor(4.0)},
        old={"w": WEIGHT + 1, "b": BIAS},
        state={},
    )
    for path in (divided(tmp_path), checkpoint.save(tmp_path, 6, saved)):
        found = load(path, CPU, {"w": rows, "b": range(1)})
        assert torch.equal(found.weights["w"], WEIGHT[rows.start : rows.stop])
        assert torch.equal(found.weights["b"], BIAS[:1])
        assert torch.equal(found.optimizer["w/exp_avg"], -WEIGHT[rows.start : rows.stop])
        assert found.optimizer["w/step"] == 4.0
    assert found.old is not None
    assert torch.equal(found.old["w"], WEIGHT[rows.start : rows.stop] + 1)


def test_rows_that_no_file_holds_are_missed(tmp_path: Path):
    path = divided(tmp_path, leave_out=1)
    assert torch.equal(load(path, CPU, {"w": range(3)}).weights["w"], WEIGHT[:3])
    for rows in (None, {"w": range(2, 4)}, {"w": range(6, 9)}):
        with pytest.raises(CheckpointError, match=r"w: rows \d to \d were asked for, and \d are there"):
            load(path, CPU, rows)


def rewritten(path: Path, change) -> None:
    """The index changed, and the manifest made to fit it."""
    index = json.loads((path / INDEX).read_text())
    change(index)
    (path / INDEX).write_text(json.dumps(index))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][INDEX] = checkpoint.fingerprint(path / INDEX)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a\\b", 3])
def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path, name: object):
    path = divided(tmp_path)
    rewritten(path, lambda index: index["weights"]["w"][1].update(file=name))
    assert f"{name!r}, which is no file beside it" in str(damage(path))
    with pytest.raises(CheckpointError, match="no file beside it"):
        load(path, CPU)


def test_a_part_that_is_missing_or_not_named_makes_no_whole_checkpoint(tmp_path: Path):
    path = divided(tmp_path)
    rewritten(path, lambda index: index["weights"]["w"][1].update(file="other.safetensors"))
    assert damage(path) == "its manifest names no other.safetensors"
    (path / "weights-1.safetensors").unlink()
    assert damage(path) == "weights-1.safetensors is missing"
    (path / INDEX).unlink()
    assert damage(path, hashes=False) == "index.json is missing"


def test_an_index_of_another_shape_than_its_files_is_told(tmp_path: Path):
    path = divided(tmp_path)
    rewritten(path, lambda index: index["weights"]["w"][1].update(shape=[2, 2]))
    with pytest.raises(CheckpointError):
        load(path, CPU)
