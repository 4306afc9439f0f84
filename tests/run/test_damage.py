"""What resume makes of a run folder in which something is damaged: recovery or a clear error."""

import json
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from muster.cli import main
from muster.config import Config, to_toml
from muster.errors import MusterError
from muster.run import Watchers, run
from muster.store import read_events, read_metrics, was_stopped
from toy_run import config_for

SECTIONS = {
    "run": {"steps": 2, "save_every": 1, "keep": 9, "threads": 1},
    "eval": {"every": 1},
    "engine": {"options": {"products": "linear"}},
}


def flip(data: bytes) -> bytes:
    place = len(data) // 3
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "halved": lambda data: data[: len(data) // 2],
    "flipped": flip,
    "foreign": lambda data: b"[1, 2]\n" * 3,
}


def settings(place: Path, folder: Path) -> Config:
    return config_for(place, folder, **SECTIONS)


@pytest.fixture(scope="module")
def recorded(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its first step of two."""
    folder = tmp_path_factory.mktemp("recorded")
    stop = Watchers(should_stop=lambda: (folder / "toy" / "rollouts" / "000001.parquet").exists())
    assert [report.step for report in run(settings(place, folder), watchers=stop)] == [0, 1]
    return folder / "toy"


@pytest.fixture
def copied(recorded: Path, tmp_path: Path) -> Path:
    """A copy of that run to damage."""
    return Path(shutil.copytree(recorded, tmp_path / "runs" / "toy"))


def harm(path: Path, how: str) -> None:
    changed = HARMS[how](path.read_bytes())
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("name", ["config.toml", "meta.json", "metrics.jsonl", "index", "events.jsonl"])
def test_a_damaged_file_of_the_run_folder_is_told_or_recovered_from(
    place: Path, copied: Path, name: str, how: str, capsys: pytest.CaptureFixture[str]
):
    """No traceback, and nothing is trained on without its being said what is lost."""
    harm(copied / name, how)
    config = settings(place, copied.parent)
    try:
        list(run(config, resume=True, watchers=Watchers(should_stop=lambda: True)))
    except MusterError as error:
        said = str(error)
    else:
        said = f"{name} did not matter"
    assert name in said or "other settings" in said
    main(["show", str(copied)])
    assert "Traceback" not in capsys.readouterr().err
    if name in ("metrics.jsonl", "index") and how in ("missing", "empty"):
        texts = [event["text"] for event in read_events(copied) if event["kind"] == "warning"]
        assert any(f"{name}: lines of steps up to 1 are lost" in text for text in texts)


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("name", ["rollouts/000001.parquet", "eval/000001.parquet"])
def test_damaged_rollouts_are_refused_by_name_and_the_run_goes_on(
    place: Path, copied: Path, name: str, how: str, capsys: pytest.CaptureFixture[str]
):
    harm(copied / name, how)
    if name.startswith("eval") and how != "missing":
        assert main(["show", str(copied)]) == 1
        assert name in capsys.readouterr().err
    assert [line["step"] for line in read_metrics(copied)] == [0, 1]
    config = settings(place, copied.parent)
    assert [report.step for report in run(config, resume=True)] == [2]


@pytest.mark.parametrize("how", [*HARMS, "longer", "newer"])
def test_resume_takes_the_newest_whole_checkpoint_and_says_what_it_passed_over(
    place: Path, recorded: Path, tmp_path: Path, how: str
):  # B50, P3: the checkpoint module's tests do this for each of its files
    copied = Path(shutil.copytree(recorded, tmp_path / "runs" / "toy"))
    newest = copied / "checkpoints" / "000001"
    if how == "newer":
        manifest = json.loads((newest / "manifest.json").read_text())
        (newest / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    elif how == "longer":
        path = newest / "weights.safetensors"
        path.write_bytes(path.read_bytes() + b"\0" * 8)
    else:
        harm(newest / "optimizer.safetensors", how)
    said: list[str] = []
    resumed = run(settings(place, copied.parent), resume=True, watchers=Watchers(say=said.append))
    assert [report.step for report in resumed] == [0, 1, 2]
    [passed] = [text for text in said if text.startswith("passed over checkpoint")]
    assert "000001" in passed
    event = next(event for event in read_events(copied) if event["kind"] == "resume")
    assert event["skipped"] == [passed.removeprefix("passed over checkpoint ")]


def test_a_moved_project_goes_on_and_a_changed_file_does_not(place: Path, tmp_path: Path):
    def config_of(folder: Path) -> Config:
        return config_for(
            folder, folder / "runs", **SECTIONS, reward={"use": [f"{folder}/grade.py:reward"], "workers": 1}
        )

    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(place, first)
    (first / "grade.py").write_text("def reward(completion):\n    return float(len(completion))\n")
    stop = Watchers(should_stop=lambda: (first / "runs/toy/rollouts/000001.parquet").exists())
    list(run(config_of(first), watchers=stop))
    assert was_stopped(first / "runs/toy")
    first.rename(second)
    config, folder = config_of(second), second / "runs/toy"
    with (
        changed(second / "train.jsonl"),
        pytest.raises(MusterError, match=r"data\.path.*with another content"),
    ):
        list(run(config, resume=True))
    assert [report.step for report in run(config, resume=True)] == [2]
    event = next(event for event in read_events(folder) if event["kind"] == "resume")
    moved = [text.split()[0] for text in event["changed"] if text.endswith("with the same content")]
    assert moved == ["model.path", "data.path", "data.eval_path", "reward.use"]
    assert (folder / "config.toml").read_text() == to_toml(config)
    with (
        changed(second / "train.jsonl"),
        pytest.raises(MusterError, match=r"the content of .*train\.jsonl was"),
    ):
        list(run(config, resume=True))
    with changed(second / "grade.py"):  # a reward that broke the run may be mended
        assert list(run(config, resume=True)) == []
    events = [event for event in read_events(folder) if event["kind"] == "resume"]
    assert events[-1]["changed"] == [f"reward.use: the content of {second}/grade.py was another"]


@contextmanager
def changed(path: Path) -> Generator[None]:
    before = path.read_text()
    path.write_text(before + "\n")
    yield
    path.write_text(before)


def test_harmless_changes_are_made_and_named(place: Path, copied: Path):
    longer = {**SECTIONS, "run": {**SECTIONS["run"], "steps": 3, "keep": 5}}
    config = config_for(place, copied.parent, **longer)
    config = config.model_copy(update={"optim": config.optim.model_copy(update={"schedule": "constant"})})
    with pytest.raises(MusterError, match=r"optim\.schedule was"):
        list(run(config, resume=True))
    changes = {"keep": 5, "budget_tokens": 32}
    same_length = config_for(place, copied.parent, **{**SECTIONS, "run": {**SECTIONS["run"], **changes}})
    list(run(same_length, resume=True))
    event = next(event for event in read_events(copied) if event["kind"] == "resume")
    assert "run.keep was 9 and is 5" in event["changed"]
    assert "run.budget_tokens was 256 and is 32" in event["changed"]
    first, second = (
        json.loads((copied / "checkpoints" / step / "state.json").read_text())
        for step in ("000001", "000002")
    )
    assert (first["budget_tokens"], second["budget_tokens"]) == (256, 32)
