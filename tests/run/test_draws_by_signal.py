"""Runs that draw prompts by what they have taught: stopping changes nothing, and the folder tells it all."""

import json
import shutil
from pathlib import Path

import pytest

from muster import checkpoint
from muster.cli.prompts import prompts_of
from muster.errors import CheckpointError, ConfigError
from muster.history import History, Visit
from muster.run import run
from muster.store import read_metrics, read_prompt_scores, read_rollouts
from toy_run import config_for, content, write_rows

STEPS = 6
SECTIONS = {
    "algo": {"resample": 1},
    "sampling": {"sync_every": 2},
    "reward": {"use": ["toy_rewards:every_third"]},
    "run": {"save_every": 1, "keep": 9, "steps": STEPS},
    "eval": {"every": 2, "group_size": 2},
}


def config(place: Path, folder: Path):
    write_rows(place / "many.jsonl", [f"question {number}" for number in range(9)])
    data = {"path": str(place / "many.jsonl"), "draw": "by_signal"}
    return config_for(place, folder, **SECTIONS, data=data)


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory) -> Path:
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    list(run(config(place, folder)))
    return folder / "toy"


def stop_after(step: int, settings) -> None:
    half = run(settings)
    for report in half:
        if report.step == step:
            break
    half.close()


@pytest.mark.parametrize("stop", range(STEPS + 1))
def test_a_run_stopped_after_any_step_draws_on_as_the_whole(whole, place, tmp_path, stop):  # P1, B52
    settings = config(place, tmp_path)
    stop_after(stop, settings)
    list(run(settings, resume=True))
    first, second = content(whole), content(tmp_path / "toy")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_every_checkpoint_holds_the_history_that_the_folder_tells(whole):
    history = History()
    for step in range(1, STEPS + 1):
        groups = read_prompt_scores(whole, step)
        assert [g.sample for g in groups] == [g.sample for g in read_rollouts(whole, step).groups]
        history = history.after(step, [Visit(g.sample.id, g.scores) for g in groups])
        state = json.loads((whole / "checkpoints" / f"{step:06d}" / "state.json").read_text())
        assert History.from_plain(state["history"]) == history
    shown = prompts_of(whole)
    assert {one.latest.sample.id: one.tally for one in shown} == {
        name: tally.at(STEPS) for name, tally in history.tallies.items()
    }
    assert sum(one.num_groups for one in shown) == sum(
        len(read_rollouts(whole, step).groups) for step in range(1, STEPS + 1)
    )


def test_rounds_of_one_step_draw_other_prompts(whole):
    for step in range(1, STEPS + 1):
        drawn = [group.sample.id for group in read_rollouts(whole, step).groups]
        assert len(set(drawn)) == len(drawn)
    assert any(len(read_rollouts(whole, step).groups) > 2 for step in range(1, STEPS + 1))


def test_what_is_expected_of_prompts_is_known_before_they_are_sampled(whole):
    seen: set[str] = set()
    for line in [line for line in read_metrics(whole) if line["step"]]:
        drawn = [group.sample.id for group in read_rollouts(whole, line["step"]).groups]
        assert line["prompts/seen_share"] == sum(name in seen for name in drawn) / len(drawn)
        assert (line["prompts/expected_reward"] is None) == (not seen & set(drawn))
        seen |= set(drawn)


def test_another_way_to_draw_is_another_run(place, tmp_path):
    settings = config(place, tmp_path)
    stop_after(1, settings)
    data = {"path": str(place / "many.jsonl"), "draw": "in_turn"}
    with pytest.raises(ConfigError, match=r"data\.draw was"):
        list(run(config_for(place, tmp_path, **SECTIONS, data=data), resume=True))


def rewrite(folder: Path, change) -> None:
    """Changes the state of a checkpoint and makes it whole again."""
    saved = checkpoint.load(folder, checkpoint.torch.device("cpu"))
    state = dict(saved.state)
    change(state)
    shutil.rmtree(folder)
    parts = checkpoint.Checkpoint(
        weights=saved.weights, optimizer=saved.optimizer, old=saved.old, state=state
    )
    checkpoint.save(folder.parent, int(folder.name), parts)


def test_a_history_that_is_none_is_refused_and_one_that_is_absent_starts_anew(place, tmp_path):
    settings = config(place, tmp_path)
    stop_after(1, settings)
    [saved] = (tmp_path / "toy" / "checkpoints").iterdir()
    rewrite(saved, lambda state: state.update(history={"step": 1, "tallies": {"0": [1]}}))
    with pytest.raises(CheckpointError, match="is no tally of a prompt"):
        list(run(settings, resume=True))
    rewrite(saved, lambda state: state.pop("history"))
    assert next(iter(run(settings, resume=True))).metrics["prompts/seen_share"] == 0
