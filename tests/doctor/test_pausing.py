"""A run that the doctor watches: findings as events, and a stop with a checkpoint where one was asked for."""

import shutil
from pathlib import Path

import pytest

from muster.cli import main
from muster.config import to_toml
from muster.errors import ConfigError
from muster.run import Watchers, run
from muster.store import read_events, read_metrics
from toy_run import toy_config

OUT_OF_REACH = {
    "reward": {"use": ["broken_rewards:never"], "in_process": ["never"]},
    "sampling": {"prompts_per_step": 8, "group_size": 2},
    "optim": {"schedule": "constant", "warmup": 0},
    "run": {"steps": 8, "pause_on": ["no-signal"]},
}


def test_a_run_stops_at_a_finding_that_was_asked_for_and_goes_on_when_resumed(place: Path):
    config = toy_config(place, **OUT_OF_REACH)
    found: list[tuple[int, str]] = []
    watchers = Watchers(found=lambda step, finding: found.append((step, finding.name)))
    stopped = [report.step for report in run(config, watchers=watchers)]
    folder = place / "runs" / "toy"
    assert found == [(stopped[-1], "no-signal")]
    assert stopped[-1] < 8
    assert (folder / "checkpoints" / f"{stopped[-1]:06d}").is_dir()
    event = next(event for event in read_events(folder) if event["kind"] == "finding")
    assert (event["name"], event["step"], event["since"]) == ("no-signal", stopped[-1], 1)
    assert read_events(folder)[-1]["findings"] == ["no-signal"]
    again: list[str] = []
    watchers = Watchers(found=lambda step, finding: again.append(finding.name))
    assert [report.step for report in run(config, resume=True, watchers=watchers)][-1] == 8
    assert again == []
    assert [line["step"] for line in read_metrics(folder)][-1] == 8


def test_on_the_command_line_a_pause_is_exit_code_3(place: Path, tmp_path: Path, capsys):
    config = toy_config(place, **OUT_OF_REACH)

    (tmp_path / "run.toml").write_text(to_toml(config))
    code = main(["train", str(tmp_path / "run.toml"), "--run.dir", str(tmp_path / "runs"), "--run.name", "x"])
    said = capsys.readouterr().err
    assert code == 3
    assert "! no-signal since step 1" in said
    assert "at no-signal; the checkpoint is whole" in said
    again = ["train", str(tmp_path / "run.toml"), "--run.dir", str(tmp_path / "runs"), "--run.name", "x"]
    # What starts a command again does not undo the pause.
    assert main([*again, "--requeue"]) == 3
    assert "was stopped at no-signal. --requeue alone does not go on" in capsys.readouterr().err


def test_a_finding_at_a_step_that_is_done_again_is_told_again(place: Path):
    config = toy_config(
        place, **{**OUT_OF_REACH, "run": {"name": "twice", "pause_on": ["no-signal"], "steps": 8}}
    )
    last = [report.step for report in run(config)][-1]
    folder = place / "runs" / "twice"
    # As after a kill between the event and the checkpoint.
    shutil.rmtree(folder / "checkpoints" / f"{last:06d}")
    found: list[tuple[int, str]] = []
    watchers = Watchers(found=lambda step, finding: found.append((step, finding.name)))
    list(run(config, resume=True, watchers=watchers))
    assert found == [(last, "no-signal")]


def test_a_finding_that_does_not_exist_is_refused_before_anything_is_loaded(place: Path):
    config = toy_config(place, run={"name": "refused", "pause_on": ["mode_collapse"]})
    with pytest.raises(
        ConfigError, match=r"run.pause_on names 'mode_collapse'.*Did you mean 'mode-collapse'"
    ):
        next(run(config))
    assert not (place / "runs" / "refused").exists()
