"""Names that would be paths, and run folders that someone else wrote or edited (P21, P24, P31)."""

import json
import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from limited import limited
from muster import checkpoint, pretrained
from muster.cli import main
from muster.config import from_mapping, is_name
from muster.errors import CheckpointError, ConfigError, ModelError
from muster.files import read_whole, remove
from muster.store import RunStore, choose_name, read_meta, read_metrics, read_rollouts
from tiny import save_tiny_model

Capture = pytest.CaptureFixture[str]
RECORDED = Path(__file__).parents[1] / "fixtures" / "run_v1"

NAMES = [
    "..", ".", "../x", "..\\x", "a/b", "/etc/x", "C:\\x", "C:x", "\\\\host\\share", "", " ", "x ", " x", "x.",
    ".x", "-x", "~", "~root/x", "x\0y", "x\ny", "x\ry", "\x1b[2J", "con", "CON.txt", "nul", "com1", "lpt9.a",
    "x" * 101,
    "ü" * 51, "\u202ex", "x\u200by", "\ud800", "x:y", "x*", "x?", "x|y", "<x>", '"x"', "x\u2028", "\x7f",
    "\x85",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_run_name_that_is_no_name_of_one_folder_is_refused(name: str):
    settings = {"model": {"path": "m"}, "data": {"path": "d.csv"}, "reward": {"use": "number"}}
    if name == "~":
        # A file of that name is one like any other: only a shell reads it otherwise.
        assert is_name(name)
        return
    with pytest.raises(ConfigError, match=r"run\.name is"):
        from_mapping({**settings, "run": {"name": name}})


@pytest.mark.parametrize("stem", ["..", ".hidden", "x" * 200, "a\nb", "con", "\u202e"], ids=ascii)
def test_the_name_of_a_configuration_file_leads_nowhere(stem: str, tmp_path: Path, capsys: Capture):
    file = tmp_path / f"{stem[:100]}.toml"
    file.write_text('[model]\npath = "no model"\n[data]\npath = "d.csv"\n[reward]\nuse = "number"\n')
    assert main(["train", str(file)]) in (1, 2)
    assert {path.name for path in tmp_path.iterdir()} - {file.name} == set()
    assert choose_name(tmp_path, "run", resume=False) == "run-1"
    capsys.readouterr()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a\\b", "sub/weights.safetensors"])
def test_a_manifest_that_names_files_elsewhere_is_no_checkpoint(tmp_path: Path, name: str):
    tensors = {"w": torch.ones(2)}
    saved = checkpoint.Checkpoint(weights=tensors, optimizer=tensors, old=None, state={})
    path = checkpoint.save(tmp_path / "checkpoints", 1, saved)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": ""}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert checkpoint.damage(path) == f"its manifest names {name!r}, which is no file of it"


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/tmp/model.safetensors", "pytorch_model.bin", "a\\b.safetensors", 3]
)
def test_an_index_of_weights_that_leads_elsewhere_is_refused(tmp_path: Path, name: object):
    folder = save_tiny_model(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"index\.json of model .* names"):
        pretrained.load_model(str(folder), dtype=torch.float32)


def test_removing_takes_a_link_and_not_what_it_leads_to(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(outside)
    remove(tmp_path / "link")
    assert (outside / "kept").read_text() == "kept"
    assert not (tmp_path / "link").is_symlink()


def test_a_resume_removes_links_and_not_what_they_lead_to(run: Path, tmp_path: Path):
    outside = tmp_path / "outside.parquet"
    outside.write_text("kept")
    (run / "rollouts" / "000099.parquet").symlink_to(outside)
    (run / "rollouts" / ".000098.parquet.1.tmp").symlink_to(outside)
    with RunStore.take(run) as store:
        store.drop_after(2)
    assert outside.read_text() == "kept"
    assert not (run / "rollouts" / "000099.parquet").is_symlink()


def test_old_checkpoints_that_are_links_are_not_followed(tmp_path: Path):
    tensors = {"w": torch.ones(2)}
    saved = checkpoint.Checkpoint(weights=tensors, optimizer=tensors, old=None, state={})
    elsewhere = checkpoint.save(tmp_path / "elsewhere", 1, saved)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "000001").symlink_to(elsewhere)
    for step in (2, 3):
        checkpoint.save(tmp_path / "checkpoints", step, saved)
        checkpoint.retire(tmp_path / "checkpoints", step, keep=1)
    assert checkpoint.damage(elsewhere) is None


LINES = [
    "[]", "null", "1", '"x"', "{", "[" * 100_000, "{}", '{"step": "x"}', '{"step": null}', '{"seconds": 1}',
    '{"step": 1, "seconds": {"sample": "x"}, "tokens": null}', '{"step": 1, "reward": [1]}',
    '{"step": 1e999, "reward": NaN}',
    '{"step": 1, "reward": "\\u001b[2J", "rewards/\\u001b[2J/mean": "\\ud800"}',
    '{"kind": "warning", "step": "\\u001b[2J", "text": {"a": "\\u202e"}}', '{"kind": []}', "\x00", "\udcff",
]  # fmt: skip


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl", "events.jsonl", "index", "meta.json"])
def test_lines_that_no_run_wrote_are_told_of_and_steer_nothing(run: Path, name: str, capsys: Capture):
    original = (run / name).read_bytes()
    for line in LINES:
        bad = line.encode("utf-8", "surrogateescape")
        (run / name).write_bytes(bad + b"\n" + (b"" if name == "meta.json" else original))
        target = str(run)
        shown = [["show", target, *options] for options in ([], ["--prompts"], ["--json"])]
        for arguments in (*shown, ["runs", str(run.parent)], ["doctor", target], ["compare", target, target]):
            assert main(arguments) in (0, 1), (arguments, line[:80])
            captured = capsys.readouterr()
            assert "Traceback" not in captured.err, (name, line[:80], captured.err)
            assert not {"\x1b", "\u202e", "\x00"} & set(captured.out + captured.err)


@pytest.mark.parametrize("name", ["metrics.jsonl", "meta.json", "config.toml", "rollouts/000001.parquet"])
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by what Linux counts")
def test_a_run_folder_with_devices_and_pipes_hangs_nobody(run: Path, name: str):
    for make in (lambda path: path.symlink_to("/dev/zero"), os.mkfifo, os.mkdir):
        (run / name).unlink(missing_ok=True) if not (run / name).is_dir() else (run / name).rmdir()
        make(run / name)
        calls = {
            "metrics.jsonl": lambda: read_metrics(run),
            "meta.json": lambda: read_meta(run),
            "config.toml": lambda: main(["train", str(run), "--resume"]),
            "rollouts/000001.parquet": lambda: read_rollouts(run, 1),
        }
        ended = limited(calls[name], memory_mib=300, seconds=5)
        assert ended.said == "2" or "Error" in ended.said
        assert "Memory" not in ended.said


def test_a_parquet_file_of_another_kind_is_told_of(run: Path, tmp_path: Path):
    pq.write_table(pa.table({"group_id": [1], "advantage": [None]}), run / "rollouts" / "000001.parquet")
    with pytest.raises(CheckpointError, match="can't be read as rollouts"):
        read_rollouts(run, 1)


def test_a_half_last_line_is_left_away_and_a_newer_format_refused(run: Path):  # P31
    count = len(read_metrics(run))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 99, "rew')
    assert len(read_metrics(run)) == count
    meta = json.loads((run / "meta.json").read_text())
    (run / "meta.json").write_text(json.dumps({**meta, "schema_version": 99}))
    with pytest.raises(CheckpointError, match=r"format 99, but .* reads up to 1.*pip install --upgrade"):
        read_meta(run)


def test_only_regular_files_are_read_whole(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    for path in (tmp_path / "pipe", Path("/dev/null"), Path("/dev/zero")):
        with pytest.raises(OSError, match="is not a regular file"):
            read_whole(path)
    assert read_whole(tmp_path / "file") == b"12345"
    with pytest.raises(OSError, match="is larger than 4 bytes"):
        read_whole(tmp_path / "file", 4)
