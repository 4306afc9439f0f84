"""The pages say what the code does: links, settings, flags, columns, metrics, functions and messages."""

import ast
import importlib
import inspect
import json
import re
from functools import cache
from pathlib import Path
from typing import Annotated, get_args, get_origin

import pyarrow.parquet as pq
import pytest
from cyclopts import Parameter

import muster
import tiny
from muster.cli import main
from muster.cli.entry import GROUPS, VERBS
from muster.config import explained_toml, fields
from muster.config.comparing import HARMLESS, compare
from muster.config.loading import from_mapping
from muster.findings import rules
from muster.preflight import obstacles
from muster.rewards import BUILTINS, json_extraction
from muster.rewards.conventions import BATCH_NAMES, COMPLETION_NAMES
from muster.selfcheck import SUSPECTS
from muster.store import SCHEMA

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
COMMANDS = VERBS | {
    f"{first} {second}": verb for first, (_, verbs) in GROUPS.items() for second, verb in verbs.items()
}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next of any level."""
    prose = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    return re.split(r"^#+ ", prose.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    """What stands between backticks in the first column of the tables."""
    cells = re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_a_page_and_to_a_heading_of_it(page: str):
    for target, anchor in LINK.findall(PAGES[page]):
        path = (DOCS / page).parent / target if target else DOCS / page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), (target, anchor)


def test_every_page_can_be_reached_from_the_index():
    reached, left = set[str](), ["index.md"]
    while left:
        page = left.pop()
        if page in reached or page not in PAGES:
            continue
        reached.add(page)
        targets = [(DOCS / page).parent / target for target, _ in LINK.findall(PAGES[page]) if target]
        left += [str(path.resolve().relative_to(DOCS.resolve())) for path in targets]
    assert reached == set(PAGES)


def test_the_settings_are_what_muster_config_prints():
    """To mend it, paste the output of `muster config` under the headings."""
    blocks = re.findall(
        r"^### `([\w.]+)`\n\n```toml\n(.*?)```", PAGES["configuration.md"], re.MULTILINE | re.DOTALL
    )
    assert "\n".join(text for _, text in blocks) == explained_toml(None)
    assert [name for name, text in blocks if f"[{name}]" not in text] == []


@pytest.mark.parametrize("verb", COMMANDS)
def test_each_verb_has_a_page_with_its_flags_and_their_help(verb: str):
    text = PAGES[f"verbs/{verb.replace(' ', '-')}.md"]
    assert text.startswith(f"# muster {verb}\n")
    assert "xit code" in text
    for name, parameter in inspect.signature(COMMANDS[verb]).parameters.items():
        assert get_origin(parameter.annotation) is Annotated
        about = next(note for note in get_args(parameter.annotation) if isinstance(note, Parameter))
        says = str(about.help).removesuffix(".").partition(": --")[0]
        assert says in text, (name, says)
        if parameter.kind is parameter.KEYWORD_ONLY:
            flags = about.name or (f"--{name.replace('_', '-')}",)
            assert all(flag.partition(".")[0] in text for flag in flags), name


def test_json_extraction_scores_as_its_table_says():
    rows = re.findall(r"^\| `(.*)` \| ([\d.]+) \| ([\d.]+) \|$", PAGES["rewards.md"], re.MULTILINE)
    (source,) = re.findall(r"Of the text `([^`]+)`", PAGES["rewards.md"])
    assert len(rows) == 17
    for completion, plain, strict in rows:
        assert json_extraction(completion, source, {}) == float(plain), completion
        assert json_extraction(completion, source, {}, strict=True) == float(strict), completion


def test_built_in_rewards_are_listed_with_their_options():
    table = section("rewards.md", "Built in")
    shown_here = [name for name in first_cells(table) if name in BUILTINS]
    assert shown_here == ["contains_answer", "char_count", "json_extraction"]
    assert all(f"`{name}`" in PAGES["reward-library.md"] for name in BUILTINS)
    for name in shown_here:
        builtin = BUILTINS[name]
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}`"))
        parameters = inspect.signature(builtin.function).parameters.values()
        for option in (p for p in parameters if p.kind is p.KEYWORD_ONLY):
            shown = f'"{option.default}"' if isinstance(option.default, str) else str(option.default).lower()
            assert f"`{option.name}` {shown}" in row


def test_what_a_reward_may_ask_for_is_listed():
    assert set(first_cells(section("rewards.md", "Once per completion"))) == COMPLETION_NAMES
    assert set(first_cells(section("rewards.md", "Once per batch"))) == BATCH_NAMES


def test_every_file_of_a_run_is_described(reader: Path):
    described = first_cells(section("run-folder.md", "The run folder"))
    folders = {name.split("/")[0] for name in described}
    assert {path.name for path in (reader / "runs" / "run-1").iterdir()} == folders
    checkpoint = reader / "runs" / "run-1" / "checkpoints" / "000002"
    named = set(first_cells(section("resume.md", "Checkpoints")))
    assert named - {"old.safetensors", "ahead.json"} == {path.name for path in checkpoint.iterdir()}
    state = json.loads((checkpoint / "state.json").read_text())
    row = next(line for line in PAGES["resume.md"].splitlines() if line.startswith("| `state.json`"))
    assert re.findall(r"`(\w+)`", row) == list(state)


@pytest.mark.parametrize("name", ["meta.json", "timings.jsonl", "index"])
def test_every_key_of_the_small_files_is_described(name: str, reader: Path):
    row = next(line for line in PAGES["run-folder.md"].splitlines() if line.startswith(f"| `{name}`"))
    line = (reader / "runs" / "run-1" / name).read_text().splitlines()[-1]
    assert set(json.loads(line)) == set(re.findall(r"`(\w+)`", row.partition(" | ")[2]))


def test_every_column_of_the_rollouts_is_described(reader: Path):
    assert sorted(first_cells(section("run-folder.md", "Columns of rollouts"))) == sorted(SCHEMA.names)
    stored = pq.read_table(reader / "runs" / "run-1" / "eval" / "000002.parquet")
    null = {name for name in stored.column_names if stored[name].null_count == len(stored)}
    assert null == {"reward", "advantage", "mask", "old_logprobs", "ref_logprobs", "logprobs", "entropy"}


def test_every_metric_is_described_and_every_described_metric_is_written(reader: Path, tiny_folder: Path):
    (reader / "noting.py").write_text(
        "def noting(completion, log_metric):\n"
        "    log_metric('loss', 1.0)\n"
        "    return float(len(completion) > 6)\n"
    )
    flags = {
        "model.path": tiny_folder,
        "data.path": "my-run/prompts.jsonl",
        "data.eval_path": "my-run/held_out.jsonl",
        "reward.use": '["contains_answer", "noting.py:noting"]',
        "algo.kl_coef": 0.01,
        "sampling.max_tokens": 8,
        "sampling.stop": '[" ", "e"]',
        "eval.group_size": 2,
        "eval.prompts": 2,
        "run.steps": 1,
        "run.name": "all",
    }
    assert (
        main(["train", *(word for path, value in flags.items() for word in (f"--{path}", str(value)))]) == 0
    )
    lines = [json.loads(line) for line in Path("runs/all/metrics.jsonl").read_text().splitlines()]
    written = {key for line in lines for key in line} - {"step"}
    described = [pattern(key) for key in first_cells(PAGES["metrics.md"])] + [
        pattern("logged/NAME"),
        pattern("eval_loss"),
    ]
    assert [key for key in sorted(written) if not any(known.fullmatch(key) for known in described)] == []
    assert [known.pattern for known in described if not any(map(known.fullmatch, written))] == []


def pattern(key: str) -> re.Pattern[str]:
    """A documented key as a pattern: NAME, LEVEL and K stand for something."""
    text = re.escape(key).replace("NAME", r"[\w.]+").replace("LEVEL", r"[\d.]+")
    return re.compile(re.sub(r"@K$", r"@\\d+", text))


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("recipes/")])
def test_every_function_that_a_page_names_is_there(page: str):
    for path in re.findall(r"`(muster(?:\.\w+)+)`", PAGES[page]):
        assert found(path) is not None, path


def found(path: str) -> object:
    """What a dotted path names; raises where it names nothing."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def test_messages_to_look_up_are_those_of_the_code():
    text = PAGES["troubleshooting.md"]
    for title in ("Before the run", "During the run"):
        for fragment in first_cells(section("troubleshooting.md", title)):
            assert fragment in messages(), fragment
    assert "`the start-up check found differences that are too large`" in text
    assert set(SUSPECTS) == set(first_cells(section("troubleshooting.md", "The start-up check")))
    for name, points_at in SUSPECTS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert points_at.replace("it does", "does").partition(" ")[2][-20:] in row


@cache
def messages() -> str:
    """Every text in the source, with a mark where a value goes in."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for path in Path(muster.__file__).parent.rglob("*.py")
    ]
    return "\n".join(text for tree in trees for node in ast.walk(tree) if (text := _text_of(node)))


def _text_of(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text_of(part) or "\0" for part in parts)
        case _:
            return ""


def test_all_that_can_stand_in_the_way_is_listed():
    sources = [inspect.getsource(module) for module in (rules, obstacles)]
    names = [name for source in sources for name in re.findall(r'name="([^"]+)"', source)]
    listed = set(first_cells(section("verbs/check.md", "What can stand in the way")))
    assert listed == {*names, "constant reward"}


def test_settings_that_a_resume_may_change_are_listed():
    harmless = set(re.findall(r"`(\w+(?:\.\w+)?)`", section("resume.md", "What may change")))
    assert all(path in harmless or path.partition(".")[0] in harmless for path in HARMLESS)
    for field in fields():
        is_listed = field.path in harmless or field.path.partition(".")[0] in harmless
        if (values := OTHER.get(field.path)) is not None:
            assert (compare(*values).changing == ()) == is_listed, field.path
    assert {"data.eval_path", "run.keep", "run.steps", "optim.lr", "eval.every"} <= OTHER.keys()


def _pair(path: str, value: object):
    name, _, key = path.partition(".")
    base: dict[str, dict[str, object]] = {
        "model": {"path": "m"},
        "data": {"path": "d.csv"},
        "reward": {"use": "r:r"},
    }
    held = {"data": {**base["data"], "eval_path": "e.csv"}}
    changed = {**base, **held}
    return from_mapping({**base, **held}), from_mapping(
        {**changed, name: {**changed.get(name, {}), key: value}}
    )


OTHER = {
    path: _pair(path, value)
    for path, value in {
        "model.dtype": "bfloat16",
        "data.eval_path": "other.csv",
        "data.eval_split": "test",
        "data.draw": "by_signal",
        "reward.max_failed_share": 0.1,
        "sampling.group_size": 4,
        "algo.kl_coef": 0.5,
        "optim.lr": 1.0,
        "optim.max_skipped": 9,
        "engine.max_mismatch": 0.9,
        "eval.every": 3,
        "eval.prompts": 3,
        "run.dir": "elsewhere",
        "run.name": "other",
        "run.seed": 1,
        "run.steps": 7,
        "run.threads": 1,
        "run.keep": 7,
        "run.layout": "shard",
        "run.save_every": 7,
        "run.on_full_disk": "go_on",
        "run.trackers": "tensorboard",
        "run.pause_on": "plateau",
        "run.budget_tokens": 7,
    }.items()
}


def test_a_run_that_was_resumed_is_the_run_that_was_not(reader: Path):
    small = ["--sampling.max_tokens", "8", "--eval.every", "1", "--eval.prompts", "2"]
    for name, steps in (("whole", "4"), ("halves", "2")):
        assert main(["train", "my-run/run.toml", "--run.name", name, "--run.steps", steps, *small]) == 0
    assert (
        main(["train", "my-run/run.toml", "--run.name", "halves", "--resume", "--run.steps", "4", *small])
        == 0
    )
    whole, halves = Path("runs/whole"), Path("runs/halves")
    for name in ("metrics.jsonl", "final/model.safetensors", "checkpoints/000004/optimizer.safetensors"):
        assert (whole / name).read_bytes() == (halves / name).read_bytes(), name


def test_families_of_models_are_those_that_are_tested():
    words = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "gemma": "Gemma"}
    words |= {
        "granite": "Granite",
        "cohere": "Cohere",
        "gpt2": "GPT-2",
        "gemma2": "Gemma 2",
        "gemma3": "Gemma 3",
    }
    shares, plain = re.findall(
        r"both ways: (.*?) share prompts; (.*?) use plain rows", PAGES["models.md"], re.DOTALL
    )[0]
    assert [family for family in tiny.SHARING if words[family] not in shares] == []
    assert [
        family for family in tiny.PLAIN if words.get(family, "Mistral with a short window") not in plain
    ] == []
