"""Every snippet in the docs is run: commands in this process, Python in order, TOML by the configuration.

A page's snippets run one after the other in a folder of the page's own (see conftest.py). The name of a
file that a snippet goes into stands in its first line (`# reward.py`) or in a comment above it
(`<!-- file: rows.jsonl -->`). A `console` snippet holds commands after `$ ` and what they print:
numbers, curves and blanks may differ, `...` stands for whatever was left out.
"""

import io
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from muster.cli import main
from muster.config import from_mapping
from toy_run import layered

ROOT = Path(__file__).parents[2]
EMBEDDED = "smollm2-135m-instruct"

BLOCK = re.compile(r"(?:^<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\S+\.(?:py|toml))\n")
NUMBER = re.compile(r"-?\d[\d,.:]*(e[+-]?\d+)?")

MINIMAL = {"model": {"path": "m"}, "data": {"path": "d.csv"}, "reward": {"use": "contains_answer"}}

# A reader's run takes minutes; the same command with these settings takes a second. What a command sets
# itself stays, but for steps, which are cut.
SMALL = {
    "train": {"run.steps": 3, "sampling.group_size": 8, "sampling.max_tokens": 8, "eval.prompts": 2},
    "eval": {"sampling.max_tokens": 8, "eval.prompts": 2},
    "check": {"sampling.max_tokens": 8, "eval.prompts": 2},
    "sft": {"sampling.prompts_per_step": 48, "model.max_tokens": 500, "eval.prompts": 2},
}
SMALLER = {'"steps": 20': '"steps": 2', "loop.py MODEL 20": "loop.py MODEL 2"}
NOT_RUN = {
    "pip": "needs a network",
    "make": "sets up an environment of its own",
    "tail": "follows a file for ever",
}

Capture = pytest.CaptureFixture[str]


class Snippet(NamedTuple):
    """A fenced block of a page."""

    place: str
    language: str
    text: str
    file: str | None


class Said(NamedTuple):
    """What became of a command."""

    code: int
    output: str


def pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def snippets(page: Path) -> Iterator[Snippet]:
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        file, language, body = match.groups()
        named = NAMED.match(body)
        line = text.count("\n", 0, match.start()) + 1
        yield Snippet(f"{page.name}, line {line}", language, body, file or (named[1] if named else None))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_the_snippets_of_a_page_run(page: Path, reader: Path, tiny_folder: Path, capsys: Capture):
    namespace: dict[str, object] = {"__name__": "snippets"}
    for snippet in snippets(page):
        text = snippet.text.replace(EMBEDDED, str(tiny_folder))
        if snippet.file:
            (reader / snippet.file).write_text(text, encoding="utf-8")
        match snippet.language:
            case "toml":
                from_mapping(layered(MINIMAL, tomllib.loads(snippet.text)))
            case "python":
                for large, small in SMALLER.items():
                    text = text.replace(large, small)
                exec(compile(text, snippet.place, "exec"), namespace)
                capsys.readouterr()
            case "bash" | "console":
                check_commands(snippet, tiny_folder, capsys)
            case _:
                assert snippet.language in ("text", "json", "jsonl", "csv"), snippet.place


def check_commands(snippet: Snippet, tiny_folder: Path, capsys: Capture) -> None:
    said = Said(0, "")
    for command, expected in commands(snippet):
        if command == "echo $?":
            assert expected == [str(said.code)], snippet.place
            said = Said(0, "")
            continue
        assert said.code == 0, (snippet.place, said.output)
        said = run(command, tiny_folder, capsys)
        is_exact = said.code not in (0, 3) or command.split()[1:2] in (["config"], ["init"])
        printed = {line.rstrip() if is_exact else skeleton(line) for line in said.output.splitlines()}
        for line in expected:
            wanted = line.rstrip() if is_exact else skeleton(line)
            assert wanted in printed or wanted == "...", (snippet.place, command, wanted, printed)
    assert said.code == 0, (snippet.place, said.output)


def commands(snippet: Snippet) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines that the page says it prints."""
    lines = [line for line in snippet.text.splitlines() if line.strip()]
    if snippet.language == "bash":
        yield from ((line, []) for line in lines if not line.startswith("#"))
        return
    for part in re.split(r"^\$ ", snippet.text, flags=re.MULTILINE)[1:]:
        command, *expected = part.splitlines()
        yield command, [line for line in expected if line.strip()]


def skeleton(line: str) -> str:
    """The line without its numbers, curves and widths."""
    plain = re.sub("[▁-█]", "", NUMBER.sub("#", line))
    # Which completion took longest is the machine's matter.
    return " ".join(re.sub("at most, on .*", "at most, on ...", plain).split())


def run(command: str, tiny_folder: Path, capsys: Capture) -> Said:
    words = shlex.split(command.replace(EMBEDDED, str(tiny_folder)), comments=True)
    if words[0] in NOT_RUN:
        return Said(0, "")
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        if "<" in words:
            patch.setattr("sys.stdin", io.StringIO(Path(words[-1]).read_text(encoding="utf-8")))
            words = words[: words.index("<")]
        if words[0] == "muster":
            code = main(made_small(words[1:], tiny_folder))
        else:
            assert words[0] == "python", command
            patch.setattr("sys.argv", ["2" if word == "20" else word for word in words[1:]])
            runpy.run_path(words[1], run_name="__main__")
            code = 0
    out, err = capsys.readouterr()
    return Said(code, out + err)


def made_small(words: list[str], tiny_folder: Path) -> list[str]:
    """The command with settings under which it takes a second."""
    verb = words[0]
    if verb == "generate" and "--max-tokens" not in words:
        return [*words, "--max-tokens", "8"]
    small = SMALL.get(verb, {})
    if any(word.startswith("examples/") for word in words):
        small = {"sampling.prompts_per_step": 1, "eval.at_start": "false", **small}
    if verb == "train" and not any(word.startswith("--model.path") for word in words):
        small = {"model.path": str(tiny_folder), **small}
    flags = [
        word
        for path, value in small.items()
        if f"--{path}" not in words
        for word in (f"--{path}", str(value))
    ]
    return [*(capped(words, "--run.steps", 3) if verb == "train" else words), *flags]


def capped(words: Sequence[str], flag: str, limit: int) -> list[str]:
    pairs = zip(["", *words], words, strict=False)
    return [str(min(int(word), limit)) if before == flag else word for before, word in pairs]
