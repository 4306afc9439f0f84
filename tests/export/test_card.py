"""The card of an exported model: what it says, and that no text from outside breaks out of it."""

import re
from pathlib import Path

import pytest
import yaml

from muster.config import from_mapping
from muster.export.card import block, cell, code, license_of, model_card, quoted

METRICS = [
    {"step": 0, "eval_reward": 0.25, "eval_reward/low": 0.1, "eval_reward/high": 0.4, "eval_num_prompts": 32},
    {"step": 1, "reward": 0.3},
    {
        "step": 2,
        "eval_reward": 0.5,
        "eval_reward/low": 0.375,
        "eval_reward/high": 0.625,
        "eval_num_prompts": 32,
    },
]


def config_of(**sections):
    settings = {
        "model": {"path": "ada/base-model"},
        "data": {"path": "/home/ada/secret-project/train.jsonl"},
        "reward": {"use": ["/home/ada/secret-project/reward.py:exact", "contains_answer"]},
        "run": {"dir": "/home/ada/runs", "seed": 11},
    }
    return from_mapping({name: {**settings.get(name, {}), **sections.get(name, {})} for name in settings})


def front_matter(card: str) -> dict[str, object]:
    text = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    assert text is not None
    return yaml.safe_load(text[1])


def test_a_card_says_what_was_trained_how_and_with_what_result():
    card = model_card(config_of(), METRICS, form="weights")
    assert front_matter(card) == {
        "library_name": "transformers",
        "tags": ["muster", "grpo", "text-generation"],
        "base_model": "ada/base-model",
    }
    for line in (
        "| base model | `ada/base-model` |",
        "| data | `train.jsonl` |",
        "| reward | `reward.py:exact`, `contains_answer` |",
        "| steps | 2 |",
        "| seed | 11 |",
        "| 0 | 0.25 | 0.1 to 0.4 | 32 |",
        "| 2 | 0.5 | 0.375 to 0.625 | 32 |",
        'model = AutoModelForCausalLM.from_pretrained("FOLDER")',
    ):
        assert line in card.splitlines(), line
    assert "torch 2." in card


def test_the_folders_of_a_machine_and_its_user_are_not_told():
    assert "/home" not in model_card(config_of(), METRICS, form="weights")
    assert "secret-project" not in model_card(config_of(), METRICS, form="weights")


def test_an_adapter_is_loaded_by_peft():
    card = model_card(config_of(), [], form="adapter")
    assert front_matter(card)["library_name"] == "peft"
    assert 'AutoPeftModelForCausalLM.from_pretrained("FOLDER")' in card
    assert "Nothing was held out." in card
    assert "| steps | 0 |" in card


def test_the_licence_is_that_of_the_base_models_card(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    assert license_of(str(base)) is None
    (base / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\n# Base\nlicense: other\n")
    assert license_of(str(base)) == "apache-2.0"
    card = model_card(config_of(model={"path": str(base)}), [], form="weights")
    assert front_matter(card)["license"] == "apache-2.0"
    assert "base_model" not in front_matter(card)


@pytest.mark.parametrize(
    "text",
    ["no front matter\nlicense: mit\n", "---\nlicense: [a, b]\n---\n", "---\nlicense: mit\n", "\udcff"],
)
def test_a_card_that_names_no_licence_gives_none(tmp_path: Path, text: str):
    (tmp_path / "README.md").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert license_of(str(tmp_path)) is None


HOSTILE = [
    "---\nlicense: mit\n---",
    'a": {x: !!python/object/apply:os.system [id]}',
    "line\u2028separator\u0085next\x7f",
    "`` ` ```\n# Heading\n<script>alert(1)</script>",
    "| a | b |\n|---|---|",
    "\ud800 half",
    "",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_one_yaml_scalar_whatever_it_holds(text):
    line = quoted(text)
    assert len(line.splitlines()) == 1
    if "\ud800" not in text:
        assert yaml.safe_load(f"key: {line}") == {"key": text}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_code_ends_neither_the_code_nor_the_line(text):
    line = code(text)
    assert len(line.splitlines()) == 1
    fence = re.match("`+", line)
    assert fence is not None
    inside = line[fence.end() : -fence.end()]
    assert line.endswith(fence[0])
    assert fence[0] not in inside
    assert not re.search(r"(?<!\\)\|", cell(inside))


def test_text_in_a_block_does_not_end_it():
    shown = block("prompt = '''\n````\n# free\n'''", "toml")
    assert shown.startswith("`````toml\n")
    assert shown.count("`````") == 2


def test_a_system_message_with_a_fence_stays_inside_the_settings():
    card = model_card(config_of(data={"system": "```\n# Not a heading\n```"}), [], form="weights")
    body = card.split("## Settings\n")[1]
    fence = re.search(r"^(`{3,})toml$", body, re.MULTILINE)
    assert fence is not None
    assert "Not a heading" in body.split(fence[1])[1]
