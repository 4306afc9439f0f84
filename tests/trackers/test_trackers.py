"""What wandb, trackio and tensorboard are sent, read back; and that none of them can harm a run."""

import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import toy_run
from muster.config import from_mapping, load
from muster.doctor import KINDS, Finding
from muster.errors import ConfigError
from muster.records import Score, StepReport
from muster.run import Watchers, run
from muster.store import read_events, read_metrics
from muster.trackers import (
    MAX_CHARACTERS,
    Kind,
    Shown,
    Tracked,
    Tracker,
    Trackers,
    best_and_worst,
    identity,
    refuse_unusable,
    tracked_run,
)
from tiny import save_tiny_model

ALL = ("wandb", "trackio", "tensorboard")
SECRET = "q8f3h2k1m5n7"
FINDING = Finding(kind=KINDS["truncation"], what="half are cut", since=2, sure="likely", how="counted")


class Told(NamedTuple):
    """A run that was stopped and resumed, with what it was told."""

    folder: Path
    trackio: Path
    printed: str


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """Two halves of a run with all trackers, none of which may reach a network."""
    place = tmp_path_factory.mktemp("tracked")
    save_tiny_model(place / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("TRACKIO_DIR", str(place / "trackio"))
        patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        for name in ("WANDB_API_KEY", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
            patch.delenv(name, raising=False)
        config = toy_run.config_for(
            place, place / "runs", run={"trackers": ALL, "save_every": 1}, eval={"every": 2}
        )
        reports: list[StepReport] = []
        half = Watchers(should_stop=lambda: len(reports) > 2)
        for report in run(config, watchers=half):
            reports.append(report)
        list(run(config, resume=True))
        yield Told(place / "runs" / "toy", place / "trackio", "")


def sent_lines(folder: Path) -> list[dict[str, float]]:
    """What should have been sent: the numbers of `metrics.jsonl`."""
    return [
        {name: value for name, value in line.items() if value is not None} for line in read_metrics(folder)
    ]


def test_no_tracker_complains(told: Told):
    warned = [event["text"] for event in read_events(told.folder) if event["kind"] == "warning"]
    assert [text for text in warned if "tracker" in text] == []
    assert [line["step"] for line in read_metrics(told.folder)] == [0, 1, 2, 3, 4]


def test_tensorboard_holds_every_number_of_the_metrics(told: Told):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(told.folder / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    found: dict[int, dict[str, float]] = {}
    for name in events.Tags()["tensors"]:
        for event in events.Tensors(name):
            if event.tensor_proto.double_val:
                found.setdefault(event.step, {"step": event.step})[name] = event.tensor_proto.double_val[0]
    assert [found[step] for step in sorted(found)] == sent_lines(told.folder)
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("samples/text_summary")]
    assert all("score" in text for text in texts)
    (config, _) = [e.tensor_proto.string_val[0].decode() for e in events.Tensors("config/text_summary")]
    assert "sampling.group_size = 4" in config


def records_of(path: Path) -> Iterator[bytes]:
    """The records of wandb's file: a log in the format of LevelDB, after a header of seven bytes."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32_768 - at % 32_768
        if left < 7:  # too short for a record's header: padding
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def test_wandb_holds_every_number_of_the_metrics(told: Told):
    from wandb.proto import wandb_internal_pb2

    lines: dict[float, dict[Any, Any]] = {}
    ids: set[str] = set()
    configs: list[str] = []
    for path in sorted((told.folder / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in records_of(path):
            record: Any = getattr(wandb_internal_pb2, "Record")()  # noqa: B009 -- made at run time
            record.ParseFromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                configs += [item.value_json for item in record.run.config.update if item.key == "sampling"]
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            numbers = {name: value for name, value in items.items() if isinstance(value, int | float)}
            if "reward" in numbers or "eval_reward" in numbers:
                line = {name: value for name, value in numbers.items() if not name.startswith("_")}
                lines[line["step"]] = line
    assert [lines[step] for step in sorted(lines)] == sent_lines(told.folder)
    assert len(ids) == 1  # both halves are one run
    assert json.loads(configs[0])["group_size"] == 4


def test_trackio_holds_every_number_of_the_metrics(told: Told):
    from trackio.sqlite_storage import SQLiteStorage

    storage: Any = SQLiteStorage
    (name,) = storage.get_runs("muster")
    assert name.startswith("toy-")
    lines: dict[int, dict[Any, float]] = {}
    for entry in storage.get_logs("muster", name):
        numbers = {key: value for key, value in entry.items() if isinstance(value, int | float)}
        lines[entry["step"]] = {**lines.get(entry["step"], {}), **numbers}
    assert [lines[step] for step in sorted(lines)] == sent_lines(told.folder)
    assert any("samples" in entry for entry in storage.get_logs("muster", name))
    assert told.trackio.is_dir()


class Recorder:
    """A tracker that remembers what it was sent, or does what it is told to."""

    def __init__(self, run: Tracked, act: Callable[[], object] = lambda: None) -> None:
        self.run, self.act = run, act
        self.seen: list[tuple[str, object]] = []

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self.act()
        self.seen.append(("numbers", (step, dict(values))))

    def note(self, step: int, title: str, text: str) -> None:
        self.seen.append(("note", (step, title, text)))

    def samples(self, step: int, rows: Sequence[Shown]) -> None:
        self.seen.append(("samples", (step, rows)))

    def close(self) -> None:
        self.seen.append(("close", None))


def trackers_of(act: Callable[[], object] = lambda: None, count: int = 1) -> tuple[Trackers, list[Recorder]]:
    made: list[Recorder] = []

    def make(tracked: Tracked) -> Tracker:
        made.append(Recorder(tracked, act))
        return made[0]

    tracked = tracked_run(Path("runs/toy"), "2026", {}, 0)
    return Trackers(["other"] * count, tracked, {"other": Kind("other", make)}), made


def report(step: int, *scores: float) -> StepReport:
    groups = (toy_run.group_of([Score(value=score) for score in scores]),) if scores else ()
    return StepReport(step=step, groups=groups, traces=(), metrics={"reward": 0.5, "kl": None}, timings={})


def test_numbers_findings_and_samples_are_sent_in_order():
    trackers, made = trackers_of()
    assert trackers.take(report(1, 0.0, 1.0), [FINDING]) == []
    assert trackers.take(report(2, 0.0, 1.0), []) == []
    assert trackers.close() == []
    kinds = [kind for kind, _ in made[0].seen]
    assert kinds == ["numbers", "note", "samples", "numbers", "close"]
    assert made[0].seen[0] == ("numbers", (1, {"reward": 0.5}))
    _, (step, title, text) = made[0].seen[1]  # pyright: ignore[reportGeneralTypeIssues]
    assert (step, title) == (1, "truncation")
    assert text.startswith("half are cut (likely, since step 2). ")


def test_a_tracker_that_fails_is_told_of_once_and_left_alone():
    def fail() -> None:
        raise OSError(f"no route to host with api_key={SECRET}")

    trackers, _ = trackers_of(fail)
    troubles = trackers.take(report(1), [])
    time.sleep(0.05)
    troubles += list(chain.from_iterable(trackers.take(report(step), []) for step in range(2, 9)))
    troubles += trackers.close()
    (trouble,) = troubles
    assert trouble == (
        "tracker other failed (OSError: no route to host with api_key=***). "
        "The run goes on without it; all is in the run's folder."
    )


def test_a_tracker_that_ends_the_process_ends_only_itself():
    def leave() -> None:
        raise SystemExit(1)

    trackers, _ = trackers_of(leave)
    trackers.take(report(1), [])
    assert "SystemExit" in "".join(trackers.close())


def test_a_tracker_that_hangs_costs_a_step_nothing():
    gate = threading.Event()
    trackers, made = trackers_of(gate.wait)
    start = time.monotonic()
    troubles = [text for step in range(1, 1_100) for text in trackers.take(report(step), [])]
    assert time.monotonic() - start < 30.0
    assert troubles == [
        "tracker other takes nothing any more: 1,000 things wait for it. "
        "The run goes on without it; all is in the run's folder."
    ]
    assert trackers.close(0.05) == []
    gate.set()
    assert made


def test_the_end_waits_only_so_long():
    gate = threading.Event()
    trackers, _ = trackers_of(gate.wait)
    trackers.take(report(1), [])
    (trouble,) = trackers.close(0.05)
    assert "was not done 0 s after the end of the run" in trouble
    gate.set()


def test_trackers_share_the_time_at_the_end():
    gate = threading.Event()
    trackers, _ = trackers_of(gate.wait, 8)
    trackers.take(report(1), [])
    start = time.monotonic()
    assert len(trackers.close(0.5)) == 8
    assert time.monotonic() - start < 3.5  # each for itself: 4 s
    gate.set()


def test_a_run_outlives_its_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_tiny_model(tmp_path / "model")
    (tmp_path / "runs" / "toy").parent.mkdir()
    config = toy_run.config_for(tmp_path, tmp_path / "runs", run={"trackers": ["tensorboard"], "steps": 2})
    said: list[str] = []
    for one in run(config, watchers=Watchers(say=said.append, should_stop=lambda: True)):
        if one.step == 1:
            break
    folder = tmp_path / "runs" / "toy" / "tensorboard"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("in the way")
    list(run(config, resume=True, watchers=Watchers(say=said.append)))
    warned = [event["text"] for event in read_events(tmp_path / "runs" / "toy") if event["kind"] == "warning"]
    assert len([text for text in warned if "tracker tensorboard failed (FileExistsError" in text]) == 1
    assert any("tracker tensorboard failed" in text for text in said)
    assert [line["step"] for line in read_metrics(tmp_path / "runs" / "toy")] == [1, 2]
    assert (tmp_path / "runs" / "toy" / "final").is_dir()


def test_a_tracker_that_is_not_installed_is_told_before_a_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'trackio is not installed.*pip install "muster-rl\[trackio\]"'):
        refuse_unusable(["trackio"])
    with pytest.raises(ConfigError, match=r"names 'wandbb', which is no tracker.*wandb.*There are: wandb"):
        refuse_unusable(["wandbb"])


def test_secrets_are_hidden_and_texts_steer_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    tracked = tracked_run(Path("runs/toy"), "2026", {"reward": {"options": {"judge": {"api_key": "x"}}}}, 1)
    assert tracked.config == {"reward": {"options": {"judge": {"api_key": "***"}}}}
    group = toy_run.group_of([0.0])
    rollout = replace(group.rollouts[0], text=f"\x1b[2J {SECRET} \u202e")
    (row,) = best_and_worst([replace(group, rollouts=(rollout,))])
    assert row.completion == "\\x1b[2J *** \\u202e"
    cut = replace(group.rollouts[0], text="x" * (MAX_CHARACTERS - 5) + SECRET)
    (row,) = best_and_worst([replace(group, rollouts=(cut,))])
    assert SECRET[:4] not in row.completion


def test_a_run_keeps_its_identity_and_another_has_its_own():
    assert identity("a", "2026-01-02") == identity("a", "2026-01-02")
    assert len({identity("a", "1"), identity("a", "2"), identity("b", "1")}) == 3


def test_the_setting_of_before_is_told_where_it_is_now(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"table_every = 5 is no setting any more: .* --table-every N"):
        from_mapping(
            {
                "model": {"path": "m"},
                "data": {"path": "d"},
                "reward": {"use": "r:r"},
                "run": {"table_every": 5},
            }
        )
    recorded = Path(__file__).parents[1] / "fixtures" / "run_v1" / "config.toml"
    assert "table_every = 5" in recorded.read_text()
    assert load(recorded).run.trackers == ()


def test_nothing_of_a_tracker_is_loaded_unasked():
    loaded = "{'wandb', 'trackio', 'tensorboard'} & set(sys.modules)"
    code = f"import muster.trackers, sys; sys.exit(bool({loaded}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
