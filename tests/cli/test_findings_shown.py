"""`muster show` and `compare` tell findings without reading a run's rollouts again."""

import json
from pathlib import Path

import pytest

import view_runs
from muster.cli import main
from muster.doctor import told
from muster.doctor.examining import MAX_LOOKED, MIN_LOOKED, course_of

Capture = pytest.CaptureFixture[str]
NUM_STEPS = 400


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a finding among its events; of its rollouts only those of the last step can be opened."""
    folder = tmp_path_factory.mktemp("shown") / "long"
    view_runs.write_long_run(folder, NUM_STEPS, view_runs.large_report(NUM_STEPS, num_groups=2, size=4))
    return folder


def without_findings(folder: Path, kept: Path, **start: object) -> Path:
    """The same run as nobody watched it, or as somebody did who found nothing."""
    kept.mkdir()
    for path in folder.iterdir():
        if path.name != "events.jsonl":
            (kept / path.name).symlink_to(path)
    (kept / "events.jsonl").write_text(json.dumps({"kind": "start", **start}) + "\n")
    return kept


def test_what_training_told_is_shown_without_opening_rollouts(long_run: Path, capsys: Capture):
    assert main(["show", str(long_run)]) == 0
    shown = capsys.readouterr()
    assert "findings told while it trained: 1" in shown.out
    assert "mode collapse since step 2, likely: completions repeat each other" in shown.out
    assert f"muster doctor {long_run}" in shown.out.replace("\n", "")
    assert shown.err == ""


def test_a_watched_run_without_findings_says_so_and_how_to_ask(
    long_run: Path, tmp_path: Path, capsys: Capture
):
    folder = without_findings(long_run, tmp_path / "quiet", watched=True)
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "no findings told while it trained; to ask afresh: muster doctor" in shown.out
    assert shown.err == ""


def test_of_a_run_that_nobody_watched_some_rollouts_are_opened(
    long_run: Path, tmp_path: Path, capsys: Capture
):
    folder = without_findings(long_run, tmp_path / "unwatched")
    for path in (folder, long_run):
        # Those that can't be opened are named, which counts them.
        assert len(course_of(path, budget_tokens=1).unread) == MIN_LOOKED - 1
        assert len(course_of(path).unread) == MAX_LOOKED - 1
    assert main(["show", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_compare_names_what_training_told(long_run: Path, tmp_path: Path, capsys: Capture):
    other = without_findings(long_run, tmp_path / "other", watched=True)
    config = '[model]\npath = "m"\n[data]\npath = "d.jsonl"\n[reward]\nuse = "r:f"\n'
    for folder in (long_run, other):
        (folder / "config.toml").write_text(config)
    assert main(["compare", str(long_run), str(other)]) == 0
    shown = capsys.readouterr()
    assert "findings of long: mode collapse" in shown.out
    assert "findings of other: none" in shown.out
    assert shown.err == ""


def test_a_finding_is_known_as_it_was_told_last():
    first = {"kind": "finding", "name": "plateau", "what": "flat"}
    assert told([]) is None
    assert told([{"kind": "start"}]) is None
    assert told([{"kind": "start", "watched": True}]) == []
    assert told([first, {**first, "what": "still flat"}]) == [{**first, "what": "still flat"}]
