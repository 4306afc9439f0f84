"""`muster doctor` and the findings in `muster show`: order, exit codes, and text that steers nothing."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from muster.cli import main
from muster.cli.findings import print_findings
from muster.doctor import KINDS, Evidence, Finding

Capture = pytest.CaptureFixture[str]

HOSTILE = Finding(
    kind=KINDS["reward-errors"],
    what="3 of 8 rollouts could not be scored: \x1b[2J[bold]boom[/bold]\u202e",
    since=2,
    sure="certain",
    how="counted",
    evidence=Evidence(numbers={"failed": 3, "spread at first": 1.0, "spread now": 0.5}, steps=(2, 3)),
)


def shown(finding: Finding, width: int) -> str:
    sink = io.StringIO()
    print_findings([finding], (), Path("runs/a"), Console(file=sink, width=width))
    return sink.getvalue()


def test_a_finding_is_told_in_its_order_and_steers_no_terminal():
    text = shown(HOSTILE, 80)
    labels = [line[2:12].strip() for line in text.splitlines() if line[2:12].strip()]
    assert labels[1:] == ["what", "since", "sure", "evidence", "means", "change"]
    assert "\\x1b[2J[bold]boom[/bold]\\u202e" in text
    assert "\x1b" not in text
    assert "failed 3; spread 1 -> 0.5; steps 2, 3" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_finding_stays_within_the_terminal(width: int):
    assert max(map(len, shown(HOSTILE, width).splitlines())) <= width


def test_without_findings_the_exit_code_is_0_whatever_it_was_to_fail_on(recorded: Path, capsys: Capture):
    assert main(["doctor", str(recorded), "--fail-on", "note"]) == 0
    assert "no findings" in capsys.readouterr().out


def test_a_level_or_a_name_that_there_is_not_is_refused(recorded: Path, capsys: Capture):
    assert main(["doctor", str(recorded), "--fail-on", "mode-colapse"]) == 2
    assert "Did you mean 'mode-collapse'?" in capsys.readouterr().err


def test_what_was_told_and_no_longer_holds_comes_last(recorded: Path, tmp_path: Path, capsys: Capture):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.toml", "meta.json", "metrics.jsonl", "timings.jsonl"):
        (folder / name).write_bytes((recorded / name).read_bytes())
    event = {"kind": "finding", "step": 3, "name": "truncation", "level": "warning", "what": "cut \x1b[31m"}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert main(["doctor", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "told during the run, and no longer so\n  step 3: truncation: cut \\x1b[31m" in out
    assert main(["doctor", str(folder), "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["earlier"]] == ["truncation"]
