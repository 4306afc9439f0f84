"""Whole runs on a tiny model that talks to an environment: what is stored, resumed, regraded and shown."""

import json
import shutil
import string
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from muster.batch import Row, collate
from muster.cli import main
from muster.config import Config
from muster.errors import ConfigError, DataError
from muster.records import Group, Trace
from muster.regrade.stored import plain_text
from muster.run import run
from muster.store import from_parquet, read_eval, read_metrics, read_rollouts, to_parquet
from muster.view.pieces import find_tokenizer
from ranks_of import train_on
from tiny import save_tiny_model, tiny_policy
from toy_run import completion_of, config_for, group_of, layered

LETTERS = tuple(string.ascii_letters + string.digits + string.punctuation.replace("<", ""))
"""A tiny model seldom ends its turns; at any of these it has."""
GAME: dict[str, dict[str, object]] = {
    "data": {"environment": "guessing_game"},
    "reward": {"use": ["environment", "toy_rewards:low_bytes"], "workers": 1},
    "sampling": {"max_tokens": 12, "stop": LETTERS},
    "model": {"max_tokens": 960},
    "run": {"steps": 2, "save_every": 1},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environments")
    save_tiny_model(folder / "model", max_position_embeddings=1024)
    for name, count in (("games", 5), ("held", 2)):
        rows = [
            {"prompt": "Guess.", "secret": 3 + n, "low": 1, "high": 20, "answer": n} for n in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def game_config(place: Path, folder: Path, **sections: dict[str, object]) -> Config:
    paths = {"path": str(place / "games.jsonl"), "eval_path": str(place / "held.jsonl")}
    merged = layered(GAME, sections)
    merged["data"] = {**paths, **merged["data"]}
    return config_for(place, folder, **merged)


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    list(run(game_config(place, folder)))
    return folder / "toy"


def rollouts(folder: Path, step: int) -> list[tuple[Group, Trace, int]]:
    stored = read_rollouts(folder, step)
    return [
        (group, stored.traces[place][index], index)
        for place, group in enumerate(stored.groups)
        for index in range(len(group.rollouts))
    ]


def test_a_run_stores_its_turns_and_whose_each_token_is(whole: Path):
    found = rollouts(whole, 1)
    assert len(found) == 8
    turns = [group.rollouts[index].episode.num_turns for group, _, index in found]  # pyright: ignore[reportOptionalMemberAccess]
    assert max(turns) > 1
    for group, trace, index in found:
        completion, episode = group.rollouts[index].completion, group.rollouts[index].episode
        assert completion.emitted is not None
        assert episode is not None
        assert completion.num_emitted <= 12
        assert len(completion.turns) == episode.num_turns
        assert trace.mask == completion.emitted or not any(trace.mask)
        for own, value in zip(completion.emitted, trace.logprobs, strict=False):
            assert (value != 0) == own
        assert set(episode.parts) == {"found", "near", "soon"}
        assert group.rollouts[index].score.parts["environment"] == pytest.approx(episode.reward)
    assert all(r.episode is not None for group in read_eval(whole, 0).groups for r in group.rollouts)


def test_the_metrics_count_what_the_policy_emitted(whole: Path):
    first = read_metrics(whole)[1]
    found = rollouts(whole, 1)
    emitted = [group.rollouts[index].completion.num_emitted for group, _, index in found]
    assert first["completions/mean_length"] == pytest.approx(sum(emitted) / len(emitted))
    assert first["completions/max_length"] <= 12
    assert first["sampling/mismatch"] < 1e-5, "each turn's logprobs are the trainer's own"
    assert first["episodes/mean_turns"] > 1
    assert first["episodes/near/mean"] is not None
    assert first["tools/call_frequency"] == 0
    assert read_metrics(whole)[0]["eval_episodes/mean_turns"] >= 1


def test_a_run_that_was_resumed_is_the_run_that_was_not(place: Path, whole: Path, tmp_path: Path):
    config = game_config(place, tmp_path)
    steps = run(config)
    for report in steps:
        if report.step == 1:
            break
    steps.close()
    list(run(config, resume=True))
    for name in ("metrics.jsonl", "rollouts/000002.parquet", "eval/000002.parquet"):
        assert (tmp_path / "toy" / name).read_bytes() == (whole / name).read_bytes(), name


def test_packed_and_plain_rows_score_what_was_emitted_alike(whole: Path):
    groups = read_rollouts(whole, 1).groups
    rows = [
        Row(number, rollout.completion, 1.0)
        for number, group in enumerate(groups)
        for rollout in group.rollouts
    ]
    batch = collate([group.prompt.ids for group in groups], rows)
    assert batch.lengths.tolist() == [len(row.completion.ids) for row in rows]
    assert int(batch.mask.sum()) == sum(row.completion.num_emitted for row in rows)
    assert int(batch.mask.sum()) < int(batch.lengths.sum())
    policy = tiny_policy(max_tokens=960, max_position_embeddings=1024)
    with torch.no_grad():
        packed, plain = policy.score(batch, temperature=1.0), policy.score(batch, temperature=1.0, plain=True)
    assert torch.allclose(packed.logprobs, plain.logprobs, atol=1e-5)
    assert packed.logprobs[~batch.mask].abs().max() == 0
    assert torch.allclose(packed.logprobs[batch.mask], batch.sampler_logprobs[batch.mask], atol=1e-4)


def test_a_run_is_regraded_examined_and_shown(
    whole: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    assert main(["regrade", str(copy), "--reward.weights", "[1.0, 0.5]"]) == 0
    assert main(["doctor", str(copy)]) in (0, 3)
    capsys.readouterr()
    assert main(["show", str(copy), "--step", "1", "--group", "0"]) == 0
    shown = capsys.readouterr().out
    assert "turn 1" in shown
    assert "user" in shown
    assert main(["show", str(copy), "--step", "1", "--group", "0", "--json"]) == 0
    group = json.loads(capsys.readouterr().out)["groups"][0]
    assert group["rollouts"][0]["episode"]["messages"][0]["role"] == "assistant"


def test_plain_texts_of_turns_are_found_again(whole: Path):
    tokenizer = find_tokenizer(whole / "tokenizer.json")
    assert tokenizer is not None
    group = read_rollouts(whole, 1).groups[0]
    for rollout in group.rollouts:
        assert rollout.episode is not None
        said = [str(m["content"]) for m in rollout.episode.messages if m["role"] == "assistant"]
        assert rollout.text == "\n".join(said)
        plain = plain_text(tokenizer, rollout)
        assert plain == rollout.text or "<|" in rollout.text


def test_a_model_is_told_of_a_calculator(place: Path, tmp_path: Path):
    config = game_config(
        place,
        tmp_path,
        model={"max_tokens": 1020},
        data={"environment": "calculator"},
        run={"steps": 1},
        eval={"at_start": False},
    )
    [report] = [report for report in run(config) if report.step == 1]
    group = report.groups[0]
    assert group.prompt_text.startswith("<|im_start|>system\nYou have these tools:\n")
    assert group.prompt_text.endswith("<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n")
    assert group.sample.messages == ({"role": "user", "content": "Guess."},), "the sample is the row's"
    assert report.metrics["tools/call_frequency"] == 0, "random weights call nothing"
    assert {name for r in group.rollouts for name in r.score.parts} == {"environment", "low_bytes"}


def test_an_environment_that_fails_costs_its_rollouts(place: Path, tmp_path: Path):
    (tmp_path / "moody.py").write_text(
        "class Moody:\n"
        "    def reset(self, row):\n"
        "        self.is_bad = int(row['secret']) % 2\n"
        "    def step(self, text):\n"
        "        if self.is_bad: raise RuntimeError('not today')\n"
        "    def reward(self):\n"
        "        return 1.0\n"
    )
    config = game_config(
        place,
        tmp_path,
        data={"environment": f"{tmp_path / 'moody.py'}:Moody", "draw": "in_order"},
        reward={"use": "toy_rewards:low_bytes", "max_failed_share": 0.6},
        run={"steps": 1},
    )
    [report] = [report for report in run(config) if report.step == 1]
    good, bad = report.groups[1], report.groups[0]
    assert all(r.score.value is not None for r in good.rollouts)
    assert all("not today" in r.score.failures["environment"] for r in bad.rollouts)
    assert report.metrics["rollouts/failed"] == 4
    assert report.metrics["episodes/failed"] == 4
    assert report.metrics["updates"] == 1


@pytest.mark.parametrize(
    ("sections", "error", "says"),
    [
        ({"data": {"environment": "guessing"}}, ConfigError, "guessing_game"),
        (
            {"data": {"environment": "guessing_game", "raw": True}},
            ConfigError,
            "turns are made by the chat template",
        ),
        (
            {"sampling": {"ignore_eos": True, "stop": ()}},
            ConfigError,
            "a turn that can't end is not answered",
        ),
        ({"data": {"environment": None}}, ConfigError, "takes over what data.environment gives"),
        ({"data": {"environment": "toy_environments:Bad", "prompt": "nothing"}}, DataError, "nothing"),
        (
            {"data": {"chat_template_kwargs": {"tools": []}, "environment": "calculator"}},
            ConfigError,
            "brings",
        ),
    ],
)
def test_what_can_not_be_is_refused_before_a_model_loads(
    place: Path, tmp_path: Path, sections: dict[str, dict[str, object]], error: type[Exception], says: str
):
    with pytest.raises(error, match=says):
        next(run(game_config(place, tmp_path, **sections)))


def test_rows_that_an_environment_can_not_be_reset_on_are_named(place: Path, tmp_path: Path):
    rows = [
        {"prompt": "x", "secret": 1, "low": 1, "high": 3},
        {"prompt": "y", "secret": None, "low": 1, "high": 3},
    ]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="can't be reset on 1 of 2 rows: sample 1: it raised ValueError"):
        next(run(game_config(place, tmp_path, data={"path": str(tmp_path / "odd.jsonl")})))


def test_files_of_runs_without_an_environment_are_as_they_were():
    group = group_of([1.0, 0.0], completions=[completion_of([5, 6]), completion_of([7])])
    data = to_parquet([group])
    back = from_parquet(data).groups[0]
    assert back.rollouts[0].completion.emitted is None
    assert back.rollouts[0].episode is None
    masked = replace(group.rollouts[0].completion, emitted=(True, False))
    assert masked.turns == (range(1),)
    assert masked.num_emitted == 1


@pytest.mark.parametrize("layout", ["replicate", "shard"])
def test_two_processes_play_what_one_does(place: Path, whole: Path, tmp_path: Path, layout: str):
    config = game_config(place, tmp_path, run={"save_every": 0, "layout": layout})
    assert train_on(2, config, tmp_path / "log") == [0, 0]
    for step in (1, 2):
        alone, together = read_rollouts(whole, step).groups, read_rollouts(tmp_path / "toy", step).groups
        for one, other in zip(alone, together, strict=True):
            assert [r.completion.ids for r in one.rollouts] == [r.completion.ids for r in other.rollouts]
            assert [r.episode for r in one.rollouts] == [r.episode for r in other.rollouts]
