"""What the pages show of recorded runs is what the commands print there."""

import re
import shlex
from pathlib import Path

import pytest

from muster.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("reading-a-run.md", "verbs/doctor.md", "verbs/compare.md")
SHOWN = re.compile(r"^```text\n\$ (muster .*?)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def words(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_the_command_prints(page: str, recorded_runs: Path, capsys, monkeypatch):
    monkeypatch.chdir(recorded_runs)
    monkeypatch.setenv("COLUMNS", "100")
    blocks = SHOWN.findall((DOCS / page).read_text(encoding="utf-8"))
    assert blocks
    for command, expected in blocks:
        assert main(shlex.split(command)[1:]) == 0
        printed = [words(line) for line in capsys.readouterr().out.splitlines()]
        for line in expected.splitlines():
            assert words(line) in (*printed, "..."), (command, line)
