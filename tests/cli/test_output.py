"""Output whose reader leaves: nothing fails on it, and no run ends for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.output import PatientConsole, log_line, print_line, program

RECORDED = Path(__file__).parents[1] / "fixtures" / "run_v1"


def without_reader():
    """The writing end of a pipe that nobody reads from any more."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", encoding="utf-8")


def test_a_console_goes_on_in_silence_once_its_reader_has_left():
    with without_reader() as stream:
        console = PatientConsole(file=stream)
        for _ in range(3):
            console.print("a line")
        assert console.quiet


@pytest.mark.parametrize(("name", "say"), [("stdout", print_line), ("stderr", log_line)])
def test_lines_go_to_nowhere_once_their_reader_has_left(monkeypatch: pytest.MonkeyPatch, name, say):
    with without_reader() as stream:
        monkeypatch.setattr(sys, name, stream)
        for _ in range(3):
            say("{}")


def test_a_run_is_shown_to_a_reader_who_stops_after_a_line():
    shown = f"{sys.executable} -m muster show {RECORDED} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("run_v1")


def test_the_next_command_can_be_typed_as_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = tmp_path / ".venv" / "bin" / "muster"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv/bin/muster", "train"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == os.path.join(".venv", "bin", "muster")
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "muster"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert program() == "muster"
