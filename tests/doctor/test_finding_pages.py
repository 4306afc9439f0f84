"""A page per finding, and each says what the finding says."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from muster.cli.findings import print_findings
from muster.doctor import KINDS, RULES, Course, examine

DOCS = Path(__file__).parents[2] / "docs" / "findings"


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n\n", 1)[1].split("\n\n## ", 1)[0].strip()


@pytest.mark.parametrize("name", KINDS)
def test_a_page_says_what_its_finding_means_and_what_to_change(name: str):
    kind, page = KINDS[name], (DOCS / f"{name}.md").read_text(encoding="utf-8")
    rule = RULES[kind]
    assert page.startswith(f"# {name}\n\nLevel: {kind.level}. Rule: `{rule.__module__}.{rule.__name__}`.\n")
    assert section(page, "What it means") == kind.means
    assert section(page, "What to change") == kind.change


@pytest.mark.parametrize("name", KINDS)
def test_a_page_shows_the_recorded_run_as_the_doctor_sees_it(name: str, course_in: Callable[[str], Course]):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    shown = [finding for finding in examine(course_in(name)) if finding.name == name]
    sink = io.StringIO()
    print_findings(shown, (), Path(name), Console(file=sink, width=100))
    (block,) = re.findall(r"```text\n\$ muster doctor \S+\n(.*?)```", page, re.DOTALL)
    assert block.split() == sink.getvalue().split()


def test_the_index_lists_all_findings_with_their_levels():
    rows = re.findall(
        r"^\| \[`([\w-]+)`\]\(\1\.md\) \| (\w+) \|", (DOCS / "index.md").read_text("utf-8"), re.M
    )
    assert dict(rows) == {kind.name: kind.level for kind in RULES}
