"""What the documents tell a reader to type exists: verbs of the command line and targets of make."""

import re
from pathlib import Path

import pytest

from muster.cli.entry import GROUPS, VERBS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

INDENTED = re.compile(r"(?:^ {4}.*\n?)+", re.MULTILINE)
FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def code_lines(text: str) -> list[str]:
    """Lines of a document's code: blocks and words between backticks, without a prompt sign."""
    fenced = FENCED.findall(text)
    rest = FENCED.sub("", text)
    pieces = [*fenced, *INDENTED.findall(rest), *INLINE.findall(rest)]
    return [line.strip().removeprefix("$ ") for piece in pieces for line in piece.splitlines()]


def unknown_commands(text: str) -> list[str]:
    """Lines that call a verb of `muster` or a target of `make` that there isn't."""
    unknown: list[str] = []
    for line in code_lines(text):
        words = line.split("#")[0].split()
        known = {"muster": {*VERBS, *GROUPS}, "make": TARGETS}.get(words[0] if words else "")
        asked = next((word for word in words[1:] if "=" not in word and not word.startswith("-")), None)
        if known is not None and asked is not None and asked not in known:
            unknown.append(line)
    return unknown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_a_document_exists(document):
    assert unknown_commands(document.read_text(encoding="utf-8")) == []


def test_a_command_that_does_not_exist_is_found_in_any_kind_of_code():
    text = "Not `make lunch`, `make PYTHON=x test`.\n\n    muster train a.toml\n    muster fly # up\n"
    assert unknown_commands(text) == ["muster fly # up", "make lunch"]
    assert unknown_commands("```console\n$ muster sing\nmuster --help\n```\n") == ["muster sing"]


def test_the_targets_are_those_of_the_makefile():
    assert {"demo", "test", "check", "format", "clean"} <= TARGETS
