"""A run whose reward starts to fail: it stops with a summary, and its last checkpoint is whole."""

import json
from pathlib import Path

import pytest

from muster import checkpoint
from muster.config import Config, from_mapping
from muster.errors import RewardError
from muster.run import run
from muster.store import read_metrics
from tiny import save_tiny_model

REWARD = """
import os
def length(completion, trainer_state, answer):
    if trainer_state.global_step >= {fails_from} and answer >= {above}:
        {how}
    return len(completion) % 7
"""


def config_of(folder: Path, reward: str) -> Config:
    save_tiny_model(folder / "model")
    rows = [json.dumps({"prompt": f"p{number}", "answer": number % 2}) for number in range(4)]
    (folder / "data.jsonl").write_text("\n".join(rows))
    (folder / "grade.py").write_text(reward)
    return from_mapping(
        {
            "model": {"path": str(folder / "model"), "max_tokens": 128},
            "data": {"path": str(folder / "data.jsonl")},
            "reward": {"use": f"{folder / 'grade.py'}:length", "workers": 1},
            "sampling": {"prompts_per_step": 2, "group_size": 2, "max_tokens": 8},
            "run": {"dir": str(folder / "runs"), "name": "r", "steps": 4, "save_every": 1, "keep": 4},
        }
    )


# B47, P13
@pytest.mark.parametrize("how", ["raise KeyError('gone')", "os._exit(9)"])
def test_a_reward_that_fails_for_all_from_step_three_stops_the_run_and_step_two_is_saved(tmp_path, how):
    config = config_of(tmp_path, REWARD.format(fails_from=3, above=0, how=how))
    steps = []
    with pytest.raises(RewardError, match="4 of 4 completions could not be scored") as caught:
        steps.extend(report.step for report in run(config))
    assert steps == [1, 2]
    assert "4 times: length " in str(caught.value)
    folder = tmp_path / "runs/r"
    found, skipped = checkpoint.find(folder / "checkpoints")
    assert (found, skipped) == (folder / "checkpoints/000002", [])
    assert [line["step"] for line in read_metrics(folder)] == [1, 2]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events[-1]["kind"] == "failure"

    (tmp_path / "grade.py").write_text(REWARD.format(fails_from=99, above=0, how="pass"))
    assert [report.step for report in run(config, resume=True)] == [3, 4]


def test_a_run_goes_on_while_half_of_its_completions_fail_and_counts_them(tmp_path):  # P13
    config = config_of(tmp_path, REWARD.format(fails_from=1, above=1, how="os._exit(9)"))
    config = config.model_copy(update={"data": config.data.model_copy(update={"draw": "in_order"})})
    reports = list(run(config))
    assert [report.step for report in reports] == [1, 2, 3, 4]
    for report in reports:
        failed = [r.score for group in report.groups for r in group.rollouts if r.score.is_failure]
        assert len(failed) == 2
        assert all(score.failures == {"length": "ended its process with exit code 9"} for score in failed)
