"""Trained models put to use: evaluated, asked, exported; from a run, a checkpoint, an adapter or a model."""

import json
import shutil
from math import inf, nan
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from muster.config import from_mapping, load
from muster.errors import CheckpointError, ConfigError, DataError
from muster.run import run
from muster.store import read_metrics
from muster.using import evaluate, export, generate, locate, run_around
from tiny import save_tiny_model
from toy_run import toy_config


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a full run `full` and an adapter run `lora`, both finished."""
    folder = tmp_path_factory.mktemp("using")
    save_tiny_model(folder / "model")
    for name, model in (("full", {}), ("lora", {"lora": {"rank": 4}})):
        config = toy_config(
            folder,
            model=model,
            data={"eval_path": str(folder / "held_out.jsonl")},
            optim={"lr": 1e-2},
            run={"name": name, "save_every": 1, "keep": 9},
        )
        list(run(config))
    return folder


def config_of(place, name):
    return load(place / "runs" / name / "config.toml")


@pytest.mark.parametrize("name", ["full", "lora"])
@pytest.mark.parametrize("part", ["", "final", "checkpoints/000004"])
def test_evaluating_a_run_gives_what_its_own_last_evaluation_gave(place, name, part):
    folder = place / "runs" / name
    report = evaluate(config_of(place, name), model_path=folder / part)
    expected = read_metrics(folder)[-1]
    assert report.metrics["eval_reward"] == expected["eval_reward"]
    assert report.metrics["eval_completions/mean_length"] == expected["eval_completions/mean_length"]
    assert len(report.groups) == 2
    assert report.step == (0 if part == "final" else 4)


def test_evaluating_an_earlier_checkpoint_measures_that_one(place):
    folder = place / "runs" / "full"
    first, last = (
        evaluate(config_of(place, "full"), model_path=folder / "checkpoints" / step)
        for step in ("000001", "000004")
    )
    assert first.step == 1
    texts = [[r.completion.ids for g in report.groups for r in g.rollouts] for report in (first, last)]
    assert texts[0] != texts[1]


def test_a_model_without_a_run_is_measured_on_the_data_that_is_named(place):
    config = toy_config(place, eval={"prompts": 3, "group_size": 2})
    report = evaluate(config)
    assert len(report.groups) == 3
    assert all(len(group.rollouts) == 2 for group in report.groups)
    assert 0 <= (report.metrics["eval_reward"] or 0) <= 1


def ask(model, prompts, **settings):
    base = {"system": None, "raw": False, "max_tokens": 6, "temperature": 0.0, "n": 1, "seed": 1}
    return list(generate(str(model), iter(prompts), **{**base, **settings}))


@pytest.mark.parametrize("name", ["full", "lora"])
def test_a_run_its_export_and_its_last_checkpoint_answer_alike(place, name):
    folder = place / "runs" / name
    answers = [ask(folder / part, ["hello", "you"]) for part in ("", "final", "checkpoints/000004")]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0] != ask(place / "model", ["hello", "you"])
    assert [len(completions) for completions in answers[0]] == [1, 1]


def test_an_adapter_away_from_its_run_finds_its_model(place, tmp_path):
    shutil.copytree(place / "runs" / "lora" / "final", tmp_path / "adapter")
    assert ask(tmp_path / "adapter", ["hello"]) == ask(place / "runs" / "lora", ["hello"])


def test_completions_follow_from_the_seed_and_differ_within_a_prompt(place):
    first, second, other = (
        ask(place / "model", ["hello"], temperature=1.0, n=4, seed=seed) for seed in (1, 1, 2)
    )
    assert first == second != other
    assert len(set(first[0])) > 1


def test_prompts_are_asked_for_one_at_a_time(place):
    """A conversation's next turn contains the last answer, so nothing may be read ahead."""
    answered = []

    def turns():
        for number in range(3):
            assert len(answered) == number
            yield [{"role": "user", "content": f"turn {number}"}]

    for completions in generate(str(place / "model"), turns(), max_tokens=3):
        answered.append(completions)
    assert len(answered) == 3


def test_raw_text_system_message_and_chat_are_different_prompts(place):
    plain, raw, system = (
        ask(place / "model", ["hello"], **settings) for settings in ({}, {"raw": True}, {"system": "Be odd."})
    )
    assert len({json.dumps(answer) for answer in (plain, raw, system)}) == 3
    with pytest.raises(ConfigError, match="raw"):
        ask(place / "model", ["hello"], raw=True, system="Be odd.")


def test_asking_for_more_than_the_model_holds_is_refused(place):
    with pytest.raises(ConfigError, match="512 tokens"):
        ask(place / "model", ["hello"], max_tokens=512)
    with pytest.raises(DataError, match="longer than"):
        ask(place / "model", ["hello " * 99], max_tokens=20)


@pytest.mark.parametrize(
    "wrong",
    [{"n": 0}, {"max_tokens": 0}, {"temperature": -1.0}, {"temperature": nan}, {"temperature": inf}],
)
def test_numbers_that_no_completion_can_be_sampled_with_are_refused(place, wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(ConfigError, match=f"{name} is {value}; allowed: "):
        ask(place / "model", ["hello"], **wrong)


def test_damage_is_said_and_a_run_falls_back_to_what_is_whole(place, tmp_path):
    shutil.copytree(place / "runs" / "full", tmp_path / "copy")
    newest = tmp_path / "copy" / "checkpoints" / "000004"
    (newest / "weights.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"weights\.safetensors is missing"):
        ask(newest, ["hello"])
    assert (
        locate(tmp_path / "copy", config_of(place, "full")).checkpoint == tmp_path / "copy/checkpoints/000003"
    )
    shutil.rmtree(tmp_path / "copy" / "checkpoints")
    assert ask(tmp_path / "copy", ["hello"]) == ask(place / "runs" / "full", ["hello"])
    shutil.rmtree(tmp_path / "copy" / "final")
    with pytest.raises(ConfigError, match="neither a whole checkpoint nor a final"):
        ask(tmp_path / "copy", ["hello"])


def test_a_name_that_is_no_folder_is_no_part_of_the_run_one_stands_in(place, monkeypatch):
    monkeypatch.chdir(place / "runs" / "full")
    assert run_around(Path("gpt2")) is None
    assert run_around(Path("final")) == place / "runs" / "full"


@pytest.mark.parametrize(
    ("name", "merge"), [("full", False), ("full", True), ("lora", False), ("lora", True)]
)
def test_a_run_is_exported_to_a_folder_of_its_own(place, tmp_path, name, merge):
    proof = export(config_of(place, name), place / "runs" / name, tmp_path / "out", merge=merge)
    assert proof.difference < 1e-4
    assert (tmp_path / "out" / "adapter_config.json").exists() == (name == "lora" and not merge)
    assert ask(tmp_path / "out", ["hello"]) == ask(place / "runs" / name, ["hello"])
    assert "## Held-out result\n\n| step | mean reward |" in (tmp_path / "out" / "README.md").read_text()
    if merge:
        AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)


def test_an_earlier_checkpoint_is_exported_as_it_is(place, tmp_path):
    source = place / "runs" / "lora" / "checkpoints" / "000001"
    export(config_of(place, "lora"), source, tmp_path / "out", merge=True)
    assert ask(tmp_path / "out", ["hello"]) == ask(source, ["hello"])


def test_an_export_never_takes_the_place_of_something_else(place, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="not empty"):
        export(config_of(place, "full"), place / "runs" / "full", tmp_path / "mine", merge=False)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_progress_and_rewards_are_those_of_the_configuration(place):
    config = toy_config(place, reward={"use": ["toy_rewards:noting_chars"]})
    report = evaluate(from_mapping(config.model_dump(exclude_none=True)))
    assert report.metrics["eval_mean_chars"] == report.metrics["eval_reward"]
    assert set(report.extras) == {"parsed"}
