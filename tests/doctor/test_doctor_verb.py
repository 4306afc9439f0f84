"""`muster doctor` on recorded runs: exit codes, JSON, and what `show` says of it."""

import json
from pathlib import Path

import pytest

from muster.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("run", "fail_on", "code"),
    [
        ("few-tokens", "serious", 3),
        ("few-tokens", "few-tokens", 3),
        ("few-tokens", "plateau", 0),
        ("plateau", "warning", 0),
        ("plateau", "note", 3),
        ("healthy-graded", "note", 0),
    ],
)
def test_fail_on_takes_a_level_and_above_or_a_name(
    run: str, fail_on: str, code: int, recorded_runs: Path, capsys: Capture
):
    assert main(["doctor", str(recorded_runs / run), "--fail-on", fail_on]) == code


def test_json_holds_every_finding_whole(recorded_runs: Path, capsys: Capture):
    assert main(["doctor", str(recorded_runs / "plateau"), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["name"] == "plateau"
    assert finding["evidence"]["rollouts"][0]["step"] == 32


def test_the_command_to_look_shows_the_rollouts(recorded_runs: Path, capsys: Capture, monkeypatch):
    monkeypatch.chdir(recorded_runs)
    assert main(["doctor", "few-tokens"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("look"))
    words = line.split("(")[0].split()
    assert main(words[2:]) == 0
    assert "group 24-" in capsys.readouterr().out


def test_a_run_is_shown_with_a_line_per_finding(recorded_runs: Path, capsys: Capture, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["show", str(recorded_runs / "few-tokens")]) == 0
    out = capsys.readouterr().out
    assert "findings: 3" in out
    assert "!! mode-collapse since step 15, certain: entropy went from" in out
    assert max(map(len, out.split("groups of step")[0].split("findings:")[0].splitlines())) <= 100
