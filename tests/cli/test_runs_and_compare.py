"""`muster runs` and `muster compare` on recorded runs."""

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from muster.cli import main
from muster.cli.listing import age, first_to_last, runs_in
from muster.store import read_eval, to_parquet

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def two(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`runs/first` and `runs/second`, whose last evaluation is that before training."""
    for name in ("first", "second"):
        shutil.copytree(recorded, tmp_path / "runs" / name)
    second = tmp_path / "runs" / "second"
    config = (second / "config.toml").read_text().replace("group_size = 4", "group_size = 8")
    (second / "config.toml").write_text(config)
    (second / "eval" / "000004.parquet").write_bytes(to_parquet(read_eval(second, 0).groups))
    for name, ago in (("first", 3600), ("second", 0)):
        for path in (tmp_path / "runs" / name).glob("*.json*"):
            os.utime(path, (time.time() - ago, time.time() - ago))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_runs_are_listed_the_newest_first(two: Path, capsys: Capture):
    assert main(["runs"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["run", "state", "step", "reward", "held-out", "written"]
    curve = "4/4 0.025 -> 0.963 0.05 -> 0.925"
    assert " ".join(rows[1].split()) == f"second finished {curve} now"
    assert " ".join(rows[2].split()) == f"first finished {curve} 1 h ago"


def test_runs_as_json_hold_the_whole_curve(two: Path, capsys: Capture):
    assert main(["runs", str(two), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in listed] == ["second", "first"]
    assert listed[0]["rewards"] == pytest.approx([0.025, 0.1875, 0.625, 0.9625])


def test_a_run_that_was_damaged_does_not_hide_the_others(two: Path):
    (two / "first" / "index").write_text("not json\n{}\n")
    assert {run.name: run.state for run in runs_in(two)} == {"first": "unreadable", "second": "finished"}


def test_no_runs_are_said_to_be_none(tmp_path: Path, capsys: Capture):
    assert main(["runs"]) == 0
    assert "there are no runs in runs" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "nowhere")]) == 2


def test_ages_and_ends_read_short():
    assert [age(seconds) for seconds in (5, 90, 7200, 200_000)] == ["now", "2 min ago", "2 h ago", "2 d ago"]
    assert [first_to_last(values) for values in ((), (0.5,), (0.5, 1.0, 0.25))] == ["-", "0.5", "0.5 -> 0.25"]


def test_a_comparison_pairs_equal_prompts(two: Path, capsys: Capture):
    assert main(["compare", "first", "second"]) == 0
    out = capsys.readouterr().out
    assert "sampling.group_size" in out
    # Differences by prompt: 0 - 1, 0.2 - 1, 0 - 0.7, 0 - 1: mean -0.875.
    assert "held-out difference: -0.875 for second, on 4 equal prompts" in " ".join(out.split())
    assert "0 is outside" in out
    assert "findings of first: none" in out


def test_a_run_is_no_different_from_itself(two: Path, capsys: Capture):
    assert main(["compare", "first", "first"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the settings are the same" in out
    assert "+0 for first" in out
    assert "it may be chance" in out


def test_other_prompts_are_not_paired(two: Path, capsys: Capture):
    data = (two / "second" / "eval" / "000004.parquet").read_bytes()
    groups = read_eval(two / "second", 4).groups

    renamed = [replace(group, prompt_text=f"other {number}") for number, group in enumerate(groups)]
    (two / "second" / "eval" / "000004.parquet").write_bytes(to_parquet(renamed))
    assert data != (two / "second" / "eval" / "000004.parquet").read_bytes()
    assert main(["compare", "first", "second", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["held_out"]["mean"] == pytest.approx(-0.875)
    assert told["held_out"]["is_paired"] is False
    assert told["prompts"] == []


def test_a_comparison_as_json_holds_curves_settings_and_prompts(two: Path, capsys: Capture):
    assert main(["compare", "first", "second", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["path"] for one in told["settings"]] == ["sampling.group_size"]
    assert told["curves"]["reward"]["first"] == told["curves"]["reward"]["second"]
    assert len(told["prompts"]) == 4
    assert told["findings"] == {"first": [], "second": []}
