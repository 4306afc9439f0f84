"""Checkpoints that ranks write together, a part each, and that any number of processes goes on from."""

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from muster.checkpoint import damage, find
from muster.files import Operation, watched
from muster.run import Watchers, run
from muster.store import read_events, read_metrics
from ranks_of import PLAIN, failing, killed, norms_of, on_ranks, train_on
from toy_run import config_for, content

PARTS = [
    f"{kind}-{number:05d}-of-00002.safetensors" for kind in ("optimizer", "weights") for number in (1, 2)
]


def config(place: Path, folder: Path, layout: str = "shard", **settings: object):
    chosen = {"steps": 3, "save_every": 1, "keep": 9, "layout": layout, **settings}
    return config_for(place, folder, engine=PLAIN, run=chosen)


@pytest.fixture(scope="module")
def half(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that was killed after its second step."""
    folder = tmp_path_factory.mktemp("half")
    assert train_on(2, config(place, folder), folder / "log", each=killed) == [1, -signal.SIGKILL]
    return folder / "toy"


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, which nobody killed."""
    folder = tmp_path_factory.mktemp("whole")
    assert train_on(2, config(place, folder), folder / "log") == [0, 0]
    return folder / "toy"


def test_each_rank_writes_its_part_and_an_index_names_them(half: Path):
    found, _ = find(half / "checkpoints")
    assert found is not None
    assert found.name == "000002"
    assert sorted(path.name for path in found.iterdir()) == sorted(
        [*PARTS, "index.json", "manifest.json", "state.json"]
    )
    index = json.loads((found / "index.json").read_text())
    assert index["weights"]["model.norm.weight"] == [
        {"file": PARTS[2], "start": 0, "shape": [16]},
        {"file": PARTS[3], "start": 16, "shape": [16]},
    ]
    assert index["optimizer"]["model.norm.weight/step"] == [{"file": PARTS[0], "start": 0, "shape": []}]
    manifest = json.loads((found / "manifest.json").read_text())
    assert manifest["format"] == 2
    assert manifest["files"].keys() == {*PARTS, "index.json", "state.json"}
    # Each holds about half of every tensor.
    sizes = [len(load_file(found / name)["model.embed_tokens.weight"]) for name in PARTS[2:]]
    assert sizes == [130, 129]


def assert_ended_alike(first: Path, second: Path) -> None:
    assert [line["reward"] for line in read_metrics(second)] == [
        line["reward"] for line in read_metrics(first)
    ]
    assert norms_of(second) == pytest.approx(norms_of(first), rel=1e-4)
    weights, others = (load_file(folder / "final" / "model.safetensors") for folder in (first, second))
    assert max(float((weights[name] - others[name]).abs().max()) for name in weights) <= 1e-6


@pytest.mark.parametrize(("count", "layout"), [(2, "shard"), (3, "shard"), (1, "replicate")])
def test_any_number_of_ranks_goes_on_in_either_layout(place, tmp_path, half, whole, count, layout):
    shutil.copytree(half, tmp_path / "toy")
    if count == 1:
        list(run(config(place, tmp_path, layout), resume=True))
    else:
        codes = train_on(count, config(place, tmp_path, layout), tmp_path / "log", resume=True)
        assert codes == [0] * count, (tmp_path / "log.0").read_text()
    assert_ended_alike(whole, tmp_path / "toy")
    if (count, layout) == (2, "shard"):
        # Taken up again by as many, it leaves the bytes of a run that nobody killed.
        expected, found = content(whole), content(tmp_path / "toy")
        assert expected.keys() == found.keys()
        assert [name for name in expected if expected[name] != found[name]] == []


def test_ranks_divide_what_one_process_saved_whole(place: Path, tmp_path: Path, whole: Path):
    steps = iter(run(config(place, tmp_path, "replicate")))
    assert [next(steps).step for _ in range(2)] == [1, 2]
    steps.close()
    codes = train_on(2, config(place, tmp_path), tmp_path / "log", resume=True)
    assert codes == [0, 0], (tmp_path / "log.0").read_text()
    assert_ended_alike(whole, tmp_path / "toy")
    assert damage(tmp_path / "toy" / "checkpoints" / "000003") is None


def watched_run(
    place: Path, folder: Path, watcher: Callable[[Operation], None], full: str = "stop"
) -> list[int]:
    """Exit codes of two ranks, the second of which tells the watcher what it does to files."""

    def work(number: int) -> None:
        steps = run(config(place, folder, on_full_disk=full), watchers=Watchers(say=print))
        if number == 0:
            list(steps)
            return
        with watched(watcher):
            list(steps)

    return on_ranks(2, folder / "log", work)


def test_a_rank_killed_between_two_of_its_files_leaves_the_checkpoint_before(place: Path, tmp_path: Path):
    def kill(operation: Operation) -> None:
        if (
            operation.kind == "write"
            and "optimizer-00002" in operation.path.name
            and "000003" in str(operation)
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    assert watched_run(place, tmp_path, kill) == [1, -signal.SIGKILL]
    folder = tmp_path / "toy"
    assert "RankError: another rank is gone" in (tmp_path / "log.0").read_text()
    assert read_events(folder)[-1]["kind"] == "failure"
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["000001", "000002"]
    assert damage(folder / "checkpoints" / "000002") is None


@pytest.mark.parametrize("full", ["stop", "go_on"])
def test_a_disk_that_is_full_for_one_rank_is_full_for_all(place: Path, tmp_path: Path, full: str):
    def refuse(operation: Operation) -> None:
        if (
            operation.kind == "write"
            and "weights-00002" in operation.path.name
            and "000002" in str(operation)
        ):
            raise OSError(errno.ENOSPC, "no space")

    codes = watched_run(place, tmp_path, refuse, full)
    folder = tmp_path / "toy"
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    if full == "stop":
        assert codes == [1, 1]
        assert names == ["000001"]
        for number in range(2):
            assert "DiskFullError" in (tmp_path / f"log.{number}").read_text()
    else:
        assert codes == [0, 0]
        assert names == ["000001", "000003"]
        assert "no checkpoint of step 2" in str(read_events(folder))


def test_an_error_on_one_rank_ends_the_run_on_all_with_a_whole_checkpoint(place: Path, tmp_path: Path):
    assert train_on(2, config(place, tmp_path), tmp_path / "log", each=failing) == [1, 1]
    assert "RankError: another rank is gone" in (tmp_path / "log.0").read_text()
    assert "ValueError: broken on one rank" in (tmp_path / "log.1").read_text()
    assert read_events(tmp_path / "toy")[-1]["kind"] == "failure"
    found, skipped = find(tmp_path / "toy" / "checkpoints")
    assert (found, skipped) == (tmp_path / "toy" / "checkpoints" / "000002", [])
