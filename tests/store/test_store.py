"""The run folder: what is written is read back, and a run goes on from where a checkpoint left it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from muster.errors import CheckpointError, ConfigError
from muster.files import Operation, watched
from muster.records import StepReport
from muster.store import (
    RunStore,
    choose_name,
    collect_meta,
    eval_steps,
    read_eval,
    read_events,
    read_index,
    read_meta,
    read_metrics,
    read_rollouts,
    read_timings,
    to_json,
)
from writing_on import set_back

META = {"command": ["muster", "train"], "started": "2026-01-02T03:04:05+00:00"}
LOGS = ("metrics.jsonl", "timings.jsonl", "index", "groups.jsonl")


def write_run(folder: Path, reports: list[StepReport]) -> None:
    with RunStore.create(folder, "", META) as store:
        for report in reports:
            store.append_step(report)


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that two equal runs have equal."""
    paths = [folder / name for name in LOGS] + sorted(folder.glob("*/*.parquet"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_records_come_back_as_they_were_written(tmp_path: Path, reports: list[StepReport]):
    write_run(tmp_path / "run", reports)
    for report in reports[1:]:
        assert read_rollouts(tmp_path / "run", report.step) == (report.groups, report.traces)
    assert reports[0].eval is not None
    assert read_eval(tmp_path / "run", 0) == (reports[0].eval.groups, ())
    assert eval_steps(tmp_path / "run") == [0, 4]


def test_the_run_recorded_in_format_1_is_read(recorded: Path, reports: list[StepReport]):
    assert read_meta(recorded)["schema_version"] == 1
    assert read_rollouts(recorded, 2) == (reports[2].groups, reports[2].traces)
    assert [line["step"] for line in read_metrics(recorded)] == [0, 1, 2, 3, 4]
    assert [line["reward"] for line in read_index(recorded)] == [None, 0.025, 0.1875, 0.625, 0.9625]
    assert [event["kind"] for event in read_events(recorded)] == ["start", "warning", "end"]


def test_every_line_is_strict_json_and_what_is_no_number_is_null(tmp_path: Path, reports: list[StepReport]):
    write_run(tmp_path / "run", reports)

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    lines = (tmp_path / "run/metrics.jsonl").read_text(encoding="ascii").splitlines()
    parsed = [json.loads(line, parse_constant=refuse) for line in lines]
    assert parsed[1]["kl"] is None
    assert parsed[2]["kl"] == 0.02
    assert "sample" not in parsed[1]  # no durations here


def test_held_out_metrics_stand_in_the_line_of_their_step(recorded: Path):
    lines = read_metrics(recorded)
    assert (lines[0]["eval_reward"], lines[4]["eval_reward"]) == (0.05, 0.925)
    assert lines[4]["reward"] == pytest.approx(0.9625)


def test_timings_hold_seconds_and_tokens_per_second_of_each_phase(recorded: Path):
    line = read_timings(recorded)[1]
    assert line["seconds"] == {"sample": 2.0, "score": 0.25, "forward": 1.0, "backward": 2.0}
    assert line["tokens"] == 34
    assert line["tokens_per_second"]["sample"] == 17.0


def test_two_equal_runs_have_equal_bytes(tmp_path: Path, reports: list[StepReport]):
    write_run(tmp_path / "a", reports)
    write_run(tmp_path / "b", reports)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4])
def test_a_resumed_run_equals_an_uninterrupted_one(step: int, tmp_path: Path, reports: list[StepReport]):
    write_run(tmp_path / "whole", reports)
    write_run(tmp_path / "resumed", reports)
    with set_back(tmp_path / "resumed", step) as store:
        for report in reports[step + 1 :]:
            store.append_step(report)
    assert contents(tmp_path / "resumed") == contents(tmp_path / "whole")


def test_half_a_last_line_is_ignored_by_readers_and_dropped_on_resume(
    tmp_path: Path, reports: list[StepReport]
):
    folder = tmp_path / "run"
    write_run(folder, reports)
    for name in (*LOGS, "events.jsonl"):
        with (folder / name).open("ab") as file:
            file.write(b'{"step": 5, "rew')
    (folder / "rollouts/.000005.parquet.1.tmp").write_bytes(b"torn")
    assert [line["step"] for line in read_metrics(folder)] == [0, 1, 2, 3, 4]
    with set_back(folder, 4):
        pass
    assert all((folder / name).read_bytes().endswith(b"}\n") for name in (*LOGS, "events.jsonl"))
    assert not list(folder.glob("**/*.tmp"))


def test_a_step_that_fails_at_any_operation_can_be_written_again(tmp_path: Path, reports: list[StepReport]):
    write_run(tmp_path / "whole", reports)
    seen: list[Operation] = []
    write_run(tmp_path / "count", reports[:4])
    with set_back(tmp_path / "count", 3) as store, watched(seen.append):
        store.append_step(reports[4])
    for passes in range(len(seen)):
        folder = tmp_path / f"run{passes}"
        write_run(folder, reports[:4])
        left = iter(range(passes))

        def fail(operation: Operation, left=left) -> None:
            if next(left, None) is None:
                raise OSError(5, operation.kind)

        with pytest.raises(OSError), set_back(folder, 3) as store, watched(fail):
            store.append_step(reports[4])
        with set_back(folder, 3) as store:
            store.append_step(reports[4])
        assert contents(folder) == contents(tmp_path / "whole")


def test_a_changed_line_in_the_middle_is_named(tmp_path: Path, reports: list[StepReport]):
    write_run(tmp_path / "run", reports)
    path = tmp_path / "run/metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"step": 1,', b'{"step": 1;'))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl, line 2 is not a JSON object"):
        read_metrics(tmp_path / "run")


def test_a_folder_that_holds_something_is_not_written_over(tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"--resume.*--run\.name"):
        RunStore.create(tmp_path, "", META)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        read_meta(tmp_path)


def test_a_newer_format_is_refused_with_advice(tmp_path: Path):
    (tmp_path / "meta.json").write_text('{"schema_version": 2}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"format 2, but .* up to 1.*pip install --upgrade"):
        read_meta(tmp_path)


def test_a_step_that_is_not_there_is_named_with_those_that_are(recorded: Path):
    with pytest.raises(ConfigError, match="holds no step 9; steps there: 1 to 4"):
        read_rollouts(recorded, 9)


def test_a_damaged_file_of_rollouts_is_named(tmp_path: Path, reports: list[StepReport]):
    write_run(tmp_path / "run", reports)
    (tmp_path / "run/rollouts/000002.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(CheckpointError, match=r"000002\.parquet can't be read"):
        read_rollouts(tmp_path / "run", 2)


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path, reports: list[StepReport]):
    with RunStore.create(tmp_path / "run", "", META), pytest.raises(CheckpointError) as caught:
        RunStore.take(tmp_path / "run")
    assert f"process {os.getpid()} on " in str(caught.value)
    RunStore.take(tmp_path / "run").close()


def test_a_killed_writer_lets_go_even_where_its_child_lives_on(tmp_path: Path):  # P8
    code = f"""
import os, time
from pathlib import Path
from muster.store import RunStore
store = RunStore.create(Path({str(tmp_path / "run")!r}), "", {{}})
if os.fork() == 0:
    print("locked", flush=True)
time.sleep(30)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        with pytest.raises(CheckpointError, match=f"process {child.pid} on "):
            RunStore.take(tmp_path / "run")
        child.send_signal(signal.SIGKILL)
        child.wait()
        RunStore.take(tmp_path / "run").close()
        os.killpg(child.pid, signal.SIGKILL)


def test_runs_get_the_next_free_number(tmp_path: Path, reports: list[StepReport]):
    assert choose_name(tmp_path / "none", "demo", resume=False) == "demo-1"
    for number in (1, 2, 10):
        write_run(tmp_path / f"demo-{number}", reports[:2])
    (tmp_path / "demo-x").mkdir()
    assert choose_name(tmp_path, "demo", resume=False) == "demo-11"
    assert choose_name(tmp_path, "demo", resume=True) == "demo-10"
    with pytest.raises(ConfigError, match="holds no run other-1 or later"):
        choose_name(tmp_path, "other", resume=True)


def test_a_time_stamp_does_not_go_into_what_must_be_equal(tmp_path: Path):
    with RunStore.create(tmp_path / "run", "", META) as store:
        store.append_event("start", steps=4, note="größe \u202e")
        time.sleep(0.002)
    (event,) = read_events(tmp_path / "run")
    assert (event["kind"], event["steps"], event["note"]) == ("start", 4, "größe \u202e")
    assert (tmp_path / "run/events.jsonl").read_bytes().isascii()


def test_foreign_values_have_a_place_in_json():
    import numpy as np

    assert to_json({"a": np.float32(0.5), "b": float("inf"), "c": (1, True, None), "d": Path("x")}) == (
        '{"a": 0.5, "b": null, "c": [1, true, null], "d": "x"}'
    )


def test_the_meta_data_names_versions_and_hardware():
    meta = collect_meta(["muster", "train"])
    assert meta["command"] == ["muster", "train"]
    assert isinstance(meta["versions"], dict)
    assert meta["versions"]["numpy"]
    assert set(meta) == {"command", "started", "versions", "git", "hardware"}


def test_no_thread_of_arrow_holds_a_file_of_python(recorded: Path, monkeypatch: pytest.MonkeyPatch):
    """One that let go of it after the interpreter's end aborted `muster show` in 1 of 15 runs."""
    read, seen = parquet.read_table, list[object]()

    def spy(source: object, *, use_threads: bool, page_checksum_verification: bool) -> pyarrow.Table:
        seen.append(source)
        return read(source, use_threads=use_threads, page_checksum_verification=page_checksum_verification)

    monkeypatch.setattr(parquet, "read_table", spy)
    read_rollouts(recorded, 1)
    assert [isinstance(source, pyarrow.NativeFile) for source in seen] == [True]


def test_the_store_is_free_of_torch():
    code = "import muster.store, muster.stats, muster.files, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
