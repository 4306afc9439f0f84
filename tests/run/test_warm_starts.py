"""`muster sft` to its end: stopped and resumed, exported, read by every verb, and trained on from."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient
from transformers import AutoModelForCausalLM, AutoTokenizer

from muster import pretrained
from muster.cli import main
from muster.config import Config, from_mapping, load
from muster.doctor import findings
from muster.errors import ConfigError, DataError
from muster.run import Watchers, run
from muster.store import read_events, read_metrics, read_rollouts
from muster.using import evaluate
from muster.view.server import create_app
from tiny import tiny_tokenizer
from toy_run import config_for, content

PAIRS = [{"prompt": f"say {letter}", "completion": 3 * letter, "kind": "x"} for letter in "abcdefg"]
ROOT = Path(__file__).parents[2]
HELD_OUT = [{"prompt": f"say {letter}", "completion": 3 * letter} for letter in "xyz"]


def rows(path: Path, values: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def warm(place: Path, folder: Path, **sections: Mapping[str, object]) -> Config:
    """A warm start of 4 steps of 3 answers, on the tiny model in the place."""
    settings: dict[str, dict[str, object]] = {
        "model": {"path": str(place / "model"), "max_tokens": 128},
        "data": {
            "path": str(rows(place / "pairs.jsonl", PAIRS)),
            "eval_path": str(rows(place / "held.jsonl", HELD_OUT)),
        },
        "algo": {"recipe": "sft"},
        "sampling": {"prompts_per_step": 3},
        "optim": {"lr": 1e-2, "schedule": "linear", "warmup": 0.5},
        "eval": {"every": 2},
        "run": {"name": "warm", "dir": str(folder), "steps": 4, "seed": 7, "save_every": 1, "keep": 9},
    }
    for section, values in sections.items():
        settings[section] = {**settings.get(section, {}), **values}
    return from_mapping(settings)


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm start that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    list(run(warm(place, folder)))
    return folder / "warm"


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_stopped_and_resumed_it_is_the_same_bit_for_bit(place: Path, whole: Path, tmp_path: Path, stop: int):
    config = warm(place, tmp_path)
    half = run(config)
    for report in half:
        if report.step == stop:
            break
    half.close()
    list(run(config, resume=True))
    first, second = content(whole), content(tmp_path / "warm")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_asked_to_stop_it_saves_and_goes_on_to_the_same_end(place: Path, whole: Path, tmp_path: Path):
    config = warm(place, tmp_path)
    list(run(config, watchers=Watchers(should_stop=lambda: True)))
    list(run(config, resume=True))
    assert content(whole) == content(tmp_path / "warm")


def test_its_folder_holds_what_a_run_has_and_says_what_it_learned(whole: Path):
    lines = read_metrics(whole)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[4]["loss"] < lines[1]["loss"]
    names = {"loss", "mean_token_accuracy", "entropy", "num_tokens", "learning_rate", "grad_norm", "epoch"}
    assert names <= lines[1].keys()
    held_out = {"eval_loss", "eval_perplexity", "eval_mean_token_accuracy", "eval_num_completions"}
    assert held_out <= lines[0].keys() & lines[2].keys() & lines[4].keys()
    assert [line["learning_rate"] for line in lines[1:]] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2, 5e-3])
    stored = read_rollouts(whole, 1)
    assert [len(group.rollouts) for group in stored.groups] == [1, 1, 1]
    assert all(len(trace.logprobs) == 4 for (trace,) in stored.traces)
    texts = {row["prompt"]: row["completion"] for row in PAIRS}
    for group in stored.groups:
        assert group.rollouts[0].text == texts[str(group.sample.messages[0]["content"])]
        assert dict(group.sample.columns) == {"kind": "x"}
    assert [event["kind"] for event in read_events(whole)] == ["start", "end"]


def test_every_metric_of_it_is_described(whole: Path):
    pages = [ROOT / "docs" / name for name in ("sft.md", "metrics.md")]
    described = set(re.findall(r"`([\w/@]+)`", "".join(page.read_text(encoding="utf-8") for page in pages)))
    assert {key for line in read_metrics(whole) for key in line} - {"step"} - described == set()


def test_the_card_says_that_answers_were_given(whole: Path):
    card = (whole / "final" / "README.md").read_text()
    assert '"sft"' in card
    assert "supervised fine-tuning" in card
    assert "perplexity" in card
    assert "completions of each" not in card


def test_the_model_loads_with_plain_transformers_and_answers_as_it_learned(place: Path, tmp_path: Path):
    list(run(warm(place, tmp_path, optim={"warmup": 0}, run={"steps": None, "epochs": 40, "save_every": 0})))
    folder = tmp_path / "warm" / "final"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "say c"}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    given = model.generate(**ids, max_new_tokens=8, do_sample=False)  # pyright: ignore[reportAttributeAccessIssue]
    answer = given[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "ccc<|im_end|>"


def test_a_run_trains_on_from_its_model_and_from_its_adapter(place: Path, whole: Path, tmp_path: Path):
    one = {"run": {"steps": 1, "name": "on"}}
    path = {"model": {"path": str(whole / "final")}}
    assert [report.step for report in run(config_for(place, tmp_path / "full", **one, **path))] == [1]
    lora = {"model": {"lora": {"rank": 4, "alpha": 8.0}}}
    list(run(warm(place, tmp_path, **lora, run={"steps": 2})))
    adapter = {"model": {"adapter": str(tmp_path / "warm" / "final")}}
    assert [report.step for report in run(config_for(place, tmp_path / "lora", **one, **adapter))] == [1]


def test_its_own_folder_repeats_it_and_it_is_measured_by_a_reward(place: Path, whole: Path):
    config = load(whole / "config.toml")
    assert config.is_warm_start
    assert config == warm(place, whole.parent)
    with pytest.raises(ConfigError, match=r"reward\.use"):
        load(whole / "config.toml", {"algo.recipe": "null", "data.completion": "null"})
    settings = {"algo.recipe": "null", "reward.use": "toy_rewards:low_bytes", "sampling.max_tokens": "4"}
    report = evaluate(load(whole / "config.toml", settings), model_path=whole / "final")
    assert report.metrics["eval_reward"] is not None


def test_every_verb_that_reads_a_run_reads_it(whole: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", str(whole)]) == 0
    out = capsys.readouterr().out
    assert "mean_token_accuracy" in out
    assert "eval_loss" in out
    assert "held-out loss at step 4" in out
    assert "abstained" not in out
    assert main(["show", str(whole), "--step", "2", "--group", "1"]) == 0
    assert main(["show", str(whole), "--prompts"]) == 0
    assert main(["show", str(whole), "--json"]) == 0
    assert main(["doctor", str(whole)]) == 0
    assert main(["runs", str(whole.parent)]) == 0
    assert "finished" in capsys.readouterr().out
    assert main(["compare", str(whole), str(whole)]) == 0
    assert re.search(r"held-out loss: warm [\d.]+", capsys.readouterr().out)
    assert findings(whole) == []


def test_the_step_line_follows_the_loss(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pairs = str(rows(place / "pairs.jsonl", PAIRS))
    arguments = ["sft", pairs, "--model.path", str(place / "model"), "--run.dir", str(tmp_path)]
    assert main([*arguments, "--table-every", "1"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"step 1/?\S*  loss [\d.]+ \S+  length 4  accuracy [\d.]+  entropy", out)
    assert "mean logprob" in out
    assert "reward" not in out
    config = load(tmp_path / "pairs-1" / "config.toml")
    assert (config.run.epochs, config.sampling.prompts_per_step, config.optim.lr) == (1, 8, 2e-5)


def test_what_means_nothing_in_a_warm_start_is_refused(place: Path, tmp_path: Path):
    sections = {
        "reward": {"use": ["toy_rewards:low_bytes"]},
        "sampling": {"group_size": 4, "prompts_per_step": 2},
        "algo": {"recipe": "sft", "kl_coef": 0.1},
        "data": {"draw": "by_signal", "max_prompt_tokens": 5},
        "engine": {"max_mismatch": 0.1},
        "eval": {"group_size": 2, "every": 0},
    }
    with pytest.raises(ConfigError) as caught:
        warm(place, tmp_path, **sections)
    lines = str(caught.value).splitlines()
    assert {line.partition(": ")[2].split()[0] for line in lines} == {
        "reward.use",
        "sampling.group_size",
        "algo.kl_coef",
        "data.draw",
        "data.max_prompt_tokens",
        "engine.max_mismatch",
        "eval.group_size",
    }
    assert all("nothing in a warm start: " in line and "leave it out" in line for line in lines)


def test_a_column_of_answers_means_nothing_where_completions_are_sampled(place: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"data\.completion.*`muster sft` learns given ones"):
        config_for(place, tmp_path, data={"completion": "answer"})


def test_wrong_answers_are_found_before_a_model_is_loaded(place: Path, tmp_path: Path):
    bad = rows(tmp_path / "bad.jsonl", [*PAIRS, {"prompt": "a", "completion": ""}])
    config = warm(place, tmp_path, data={"path": str(bad)}, model={"path": str(place / "model")})
    told: list[str] = []
    with pytest.raises(DataError, match="line 8: the answer"):
        list(run(config, watchers=Watchers(progress=lambda phase, *_: told.append(phase))))
    assert told == ["load"]
    assert not (tmp_path / "warm").exists()


def test_the_flags_say_what_is_given_twice(place: Path, capsys: pytest.CaptureFixture[str]):
    pairs = str(rows(place / "pairs.jsonl", PAIRS))
    assert main(["sft", pairs, "--data.path", "x.jsonl", "--model.path", "m"]) == 2
    assert main(["sft", pairs, "--algo.recipe", "grpo", "--model.path", "m"]) == 2
    err = capsys.readouterr().err
    assert "data is given twice" in err
    assert "--algo.recipe has no use here" in err


def test_the_stop_tokens_are_those_that_the_loaded_model_has(place: Path):
    path, tokenizer = str(place / "model"), tiny_tokenizer()
    model = pretrained.load_model(path, dtype=torch.float32)
    assert pretrained.stop_ids_of(path, tokenizer) == pretrained.stop_ids(model, tokenizer)


def test_the_inspector_shows_its_curves_and_its_answers_by_token(whole: Path):
    client = TestClient(create_app([whole.parent]), base_url="http://127.0.0.1:8765")
    [run] = client.get("/api/runs").json()["runs"]
    place = f"/api/runs/{run['id']}"
    status = client.get(place).json()["status"]
    lines = read_metrics(whole)
    assert status["loss"] == {
        "last": lines[-1]["loss"],
        "held_out_first": lines[0]["eval_loss"],
        "held_out": lines[-1]["eval_loss"],
    }
    columns = client.get(f"{place}/curves").json()["columns"]
    assert columns["mean_token_accuracy"][1:] == [line["mean_token_accuracy"] for line in lines[1:]]
    groups = client.get(f"{place}/steps/1").json()["groups"]
    assert [(group["size"], group["flags"]) for group in groups] == [(1, [])] * 3
    tokens = client.get(f"{place}/steps/1/rollouts/0").json()
    (trace,) = read_rollouts(whole, 1).traces[0]
    assert tokens["logprobs"] == pytest.approx(trace.logprobs, rel=1e-5)
    assert tokens["pieces"][-1] == "<|im_end|>"
    assert client.get(f"{place}/steps/4", params={"held_out": 1}).json()["num_rollouts"] == 3
