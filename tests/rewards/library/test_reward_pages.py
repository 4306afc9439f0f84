"""The page on the library says what the code does: tables are run, options are compared, snippets load."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from muster.config import from_mapping
from muster.rewards import BUILTINS, load_rewards

PAGE = (Path(__file__).parents[3] / "docs" / "reward-library.md").read_text(encoding="utf-8")
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
SNIPPETS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
ROW = re.compile(r"^\| (.+?) \| (.*?) ?\| (.*?) ?\| (-?[\d.]+|none) \|$", re.MULTILINE)
EXAMPLES = [(name, *row) for name, text in SECTIONS.items() for row in ROW.findall(text)]
ON_OTHER_PAGES = {"code", "environment", "reasoning_gym"}


def settings(cell: str) -> dict[str, object]:
    """The cell's inline TOML."""
    text = cell.strip("`").replace("⏎", "\\n")
    return tomllib.loads(f"row = {{{text}}}")["row"]


def options_of(name: str) -> dict[str, object]:
    parameters = inspect.signature(BUILTINS[name].function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_each_reward_has_a_section_and_a_line_in_the_table():
    assert set(SECTIONS) == set(BUILTINS) - ON_OTHER_PAGES
    for name, text in SECTIONS.items():
        assert f"| [`{name}`](#{name}) |" in PAGE
        assert "```toml" in text
        assert name == "judge" or any(example[0] == name for example in EXAMPLES)


def test_no_example_is_overlooked():
    tables = re.findall(r"\| completion \| row \| options \| score \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE)
    assert sum(table.count("\n") for table in tables) == len(EXAMPLES)


@pytest.mark.parametrize(("name", "completion", "row", "options", "score"), EXAMPLES)
def test_each_example_scores_what_the_page_says(name, completion, row, options, score, score_of):
    tokens = re.fullmatch(r"(\d+) tokens", completion)
    text = "" if completion == "(empty)" else completion.strip("`").replace("⏎", "\n")
    if tokens:
        text = "x" if int(tokens[1]) else ""
    given = score_of(
        name, text, settings(options), tokens=int(tokens[1]) if tokens else len(text.split()), **settings(row)
    )
    assert not given.failures
    assert given.value == (None if score == "none" else pytest.approx(float(score), abs=0.01))


@pytest.mark.parametrize("name", SECTIONS)
def test_the_options_on_the_page_are_those_of_the_code_with_their_defaults(name):
    options = options_of(name)
    table = SECTIONS[name].partition("| option | default | meaning |")[2].partition("\n\n")[0]
    written = dict(re.findall(r"^\| `(\w+)` \| ?(.*?) ?\| [^|]+ \|$", table, re.MULTILINE))
    assert set(written) == set(options)
    for option, default in options.items():
        cell = written[option]
        if cell.startswith("`"):
            value = tomllib.loads(f"value = {cell.strip('`')}")["value"]
            assert (tuple(value) if isinstance(value, list) else value) == default, option
        elif cell:
            assert str(default).startswith(cell.strip('"').removesuffix(" ...")), option
        else:
            assert default in (None, inspect.Parameter.empty), option


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_each_snippet_names_rewards_that_load(snippet):
    needed = {"model": {"path": "x"}, "data": {"path": "x"}}
    section = from_mapping({**needed, **tomllib.loads(snippet)}).reward
    assert load_rewards(section.use, section.weights, section.options)


def test_the_levels_are_those_of_the_table():
    for name, builtin in BUILTINS.items():
        if builtin.levels == (0.0, 1.0):
            assert re.search(rf"\| \[`{name}`\].*\| 0, 1 \|", PAGE), name
