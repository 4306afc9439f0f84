"""What the doctor says of folders that hold less than it would look at."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import view_runs
from muster.cli import main
from muster.doctor import KINDS, NEEDS, Course, Unasked, course_of, examine, in_words, lacking
from muster.view.examining import examined
from muster.view.sources import source_of

Capture = pytest.CaptureFixture[str]


def names_in(folder: Path) -> set[str]:
    source = source_of(folder)
    assert source is not None
    return {finding.name for finding in examined(source).findings}


def test_every_rule_says_what_it_needs():
    assert list(NEEDS) == list(KINDS)


def test_what_a_rule_needs_is_there_in_the_run_that_shows_it(course_in: Callable[[str], Course]):
    for name in KINDS:
        assert name not in {one.name for one in lacking(course_in(name))}


@pytest.mark.parametrize(
    "name",
    [
        "sampler-mismatch",
        "exploding-gradients",
        "dead-gradients",
        "clip-saturation",
        "kl-runaway",
        "throughput-rot",
        "plateau",
        "part-at-ceiling",
        "independent-reward",
    ],
)
def test_what_metrics_alone_show_is_found_without_rollouts(name: str, recorded_runs: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(recorded_runs / name, folder, ignore=shutil.ignore_patterns("rollouts", "eval"))
    course = course_of(folder)
    assert name in {finding.name for finding in examine(course)}
    assert {"no-signal", "few-tokens", "repeated-data"} <= {one.name for one in lacking(course)}


def test_trls_completions_tell_a_collapse_and_groups_without_signal(tmp_path: Path, capsys: Capture):
    folder = view_runs.write_trl_run(tmp_path / "trl", 24)
    assert {"mode-collapse", "no-signal"} <= names_in(folder)
    assert main(["doctor", str(folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "distinct completions of a group went from 1 to 0.5" in out
    assert "few-tokens, length-reward, length-drift lack the tokens of each completion" in out
    assert "evaluation-gap lacks the completions of two evaluations" in out


def test_three_steps_of_trl_are_too_few_and_are_said_to_be(tmp_path: Path, capsys: Capture):
    assert main(["doctor", str(view_runs.write_trl_run(tmp_path / "trl"))]) == 0
    assert "3 steps so far: no trend shows in fewer than 6" in capsys.readouterr().out


def test_trls_kl_is_read_as_the_mean_of_k3(tmp_path: Path):
    folder = view_runs.write_trl_run(tmp_path / "trl")
    state = folder / "checkpoint-3" / "trainer_state.json"
    log = [
        {"step": n, "reward": 0.5 + 0.01 * (n % 2), "kl": 0.01 if n < 30 else 0.01 * 1.2 ** (n - 29)}
        for n in range(1, 61)
    ]
    state.write_text(json.dumps({"log_history": log}))
    assert "kl-runaway" in names_in(folder)


def test_plain_metrics_are_asked_what_they_show(tmp_path: Path, capsys: Capture):
    folder = tmp_path / "plain"
    folder.mkdir()
    lines = [{"reward": 0.5 + 0.01 * (n % 2), "frac_reward_zero_std": 0.1} for n in range(40)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["doctor", str(folder), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in answer["findings"]] == ["plateau"]
    unasked = {one["name"]: one["lacks"] for one in answer["unasked"]}
    assert unasked["mode-collapse"] == ["scored completions by group"]
    assert "plateau" not in unasked


@pytest.mark.parametrize("line", ['{"reward": "high", "step": 1}', '{"reward": [1], "grad_norm": {}}', "[]"])
def test_odd_metrics_of_others_are_no_numbers(line: str, tmp_path: Path):
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(f"{line}\n" * 40)
    assert names_in(folder) == set()


def test_a_folder_that_no_trainer_wrote_is_refused(tmp_path: Path, capsys: Capture):
    (tmp_path / "x").mkdir()
    assert main(["doctor", str(tmp_path / "x")]) == 2
    assert "is no run" in capsys.readouterr().err


def test_rules_that_lack_the_same_are_told_together():
    assert in_words([]) == []
    assert in_words([Unasked("a", ("x", "y")), Unasked("b", ("x", "y"))]) == ["a, b lack x and y"]
    assert in_words([Unasked("a", ("x",))]) == ["a lacks x"]
