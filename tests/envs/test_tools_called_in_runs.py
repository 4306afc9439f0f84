"""Whole runs of a model that calls a tool: results are context alone, rewards are told the rollout."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from fake_vllm import FakeVllm, served_by
from muster.cli import main
from muster.config import Config
from muster.policy import Policy
from muster.records import Group, Rollout, Trace
from muster.run import run
from muster.store import read_metrics, read_rollouts
from tiny import tiny_model, tiny_tokenizer
from toy_run import config_for, layered

CALL = '<tool_call>{"name":"increment","arguments":{"step":3}}</tool_call>'
END, CALLS = 2, 259
"""The token that ends a turn, and one whose text is a whole call."""


def calling_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([CALL])
    return tokenizer


def calling_model() -> PreTrainedModel:
    """A model that calls or ends its turn, mostly, whatever it has read."""
    model = tiny_model(vocab_size=260, tie_word_embeddings=False, max_position_embeddings=1024)
    weights = dict(model.named_parameters())
    embedded, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    with torch.no_grad():
        # One direction outweighs all others in every state, and the head reads two tokens off it.
        embedded[:, 0] = 20.0
        head[:, 0] = 0.0
        head[[END, CALLS], 0] = 1.5
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calling")
    calling_model().save_pretrained(folder / "model")
    calling_tokenizer().save_pretrained(folder / "model")
    rows = [{"prompt": f"Count {number}.", "answer": 3 * number} for number in range(1, 6)]
    (folder / "goals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def calling_config(place: Path, folder: Path, **sections: dict[str, object]) -> Config:
    settings: dict[str, dict[str, object]] = {
        "data": {"path": str(place / "goals.jsonl"), "environment": "toy_environments:Counted"},
        "reward": {"use": ["environment"], "workers": 1},
        "sampling": {"max_tokens": 6},
        "model": {"max_tokens": 960},
        "run": {"steps": 2, "save_every": 1},
    }
    return config_for(place, folder, **layered(settings, sections))


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, never interrupted."""
    folder = tmp_path_factory.mktemp("called")
    list(run(calling_config(place, folder)))
    return folder / "toy"


def stored(folder: Path, step: int) -> list[tuple[Group, Rollout, Trace]]:
    read = read_rollouts(folder, step)
    return [
        (group, rollout, trace)
        for group, traces in zip(read.groups, read.traces, strict=True)
        for rollout, trace in zip(group.rollouts, traces, strict=True)
    ]


def context_of(rollout: Rollout) -> str:
    """What the policy was given behind its prompt, as the episode's messages have it."""
    assert rollout.episode is not None
    text = ""
    for before, message in pairwise(rollout.episode.messages):
        if message["role"] == "tool":
            begins = "\n" if before["role"] == "assistant" else ""
            text += f"{begins}<|im_start|>tool\n{message['content']}<|im_end|>\n"
        else:
            text += "<|im_start|>assistant\n"
    return text


def test_results_of_a_tool_are_in_the_rollout_and_in_nothing_that_is_learned(whole: Path):
    tokenizer = calling_tokenizer()
    found = stored(whole, 1)
    called = [one for one in found if one[1].episode and "tool" in context_of(one[1])]
    assert 0 < len(called) < len(found)
    for _, rollout, trace in called:
        completion, episode = rollout.completion, rollout.episode
        assert completion.emitted is not None
        assert episode is not None
        given = [number for number, own in zip(completion.ids, completion.emitted, strict=True) if not own]
        assert tokenizer.decode(given) == context_of(rollout)
        results = [message["content"] for message in episode.messages if message["role"] == "tool"]
        assert results == [str(3 * number) for number in range(1, len(results) + 1)]
        assert episode.num_calls >= len(results)
        assert episode.num_failed_calls == 0
        assert any(trace.mask)
        assert trace.mask == completion.emitted
        for own, value, sampled in zip(
            completion.emitted, trace.logprobs, completion.sampler_logprobs, strict=True
        ):
            assert (value != 0) == (sampled != 0) == own


def test_metrics_and_what_the_reward_function_was_told_are_the_rollouts(whole: Path):
    for step in (1, 2):
        line = read_metrics(whole)[step - 1]
        assert line["step"] == step
        rollouts = [rollout for _, rollout, _ in stored(whole, step)]
        episodes = [rollout.episode for rollout in rollouts if rollout.episode is not None]
        assert len(episodes) == 8
        assert line["tools/call_frequency"] == sum(one.num_calls for one in episodes) / 8 > 0
        assert line["tools/failure_frequency"] == 0
        assert line["told/messages"] == sum(len(one.messages) for one in episodes) / 8
        assert line["told/ids"] == sum(len(rollout.completion.ids) for rollout in rollouts) / 8
        assert line["told/step"] == step
        assert line["episodes/near/mean"] == pytest.approx(line["rewards/environment/mean"])
        assert line["sampling/mismatch"] < 1e-5
        assert line["completions/max_length"] <= 6


def test_a_run_with_calls_that_was_resumed_is_the_run_that_was_not(place: Path, whole: Path, tmp_path: Path):
    config = calling_config(place, tmp_path)
    steps = run(config)
    assert next(steps).step == 1
    steps.close()
    list(run(config, resume=True))
    for name in ("metrics.jsonl", "rollouts/000002.parquet"):
        assert (tmp_path / "toy" / name).read_bytes() == (whole / name).read_bytes(), name


def test_calls_and_results_are_shown(whole: Path, capsys: pytest.CaptureFixture[str]):
    place = next(
        int(group.id.split("-")[1]) for group, rollout, _ in stored(whole, 1) if "tool" in context_of(rollout)
    )
    assert main(["show", str(whole), "--step", "1", "--group", str(place)]) == 0
    shown = capsys.readouterr().out
    assert "tool: 3" in shown
    assert "increment" in shown


def test_an_environment_with_a_tool_is_played_on_a_server(place: Path, tmp_path: Path):
    fake = FakeVllm(lambda: Policy(calling_model(), calling_tokenizer(), max_tokens=960))
    engine = served_by([fake])
    try:
        reports = list(run(calling_config(place, tmp_path, engine=engine)))
    finally:
        fake.stop()
    assert [report.step for report in reports] == [1, 2]
    for report in reports:
        gap, calls = report.metrics["sampling/mismatch"], report.metrics["tools/call_frequency"]
        assert gap is not None
        assert calls is not None
        assert gap < 1e-4, "each turn's logprobs are the trainer's own"
        assert calls > 0
    asked = {tuple(body["token_ids"]) for body in fake.bodies}
    later = [
        (*group.prompt.ids, *rollout.completion.ids[: turn.start])
        for group, rollout, _ in stored(tmp_path / "toy", 1)
        for turn in rollout.completion.turns[1:]
    ]
    assert later
    assert set(later) <= asked, "what was said goes back to the server token by token"
