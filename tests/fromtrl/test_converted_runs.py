"""A converted script as a run: checked before it is trained, on a model small enough for a test."""

import json
from pathlib import Path

import pytest

from muster.cli import main
from tiny import save_tiny_model
from trl_scripts import GUIDE

REWARDS = '''
def json_reward(prompts, completions, **kwargs):
    """By the last message of the assistant."""
    return [len(messages[-1]["content"]) % 2 for messages in completions]
'''


def test_the_guides_script_is_a_run_that_can_be_checked(capsys: pytest.CaptureFixture[str]):
    script = GUIDE.replace("reward_funcs=[json_reward, long_enough]", "reward_funcs=json_reward")
    Path("train.py").write_text(script, encoding="utf-8")
    assert main(["init", "guide", "--from-trl", "train.py"]) == 0
    assert "this run samples without it" in capsys.readouterr().out
    Path("rewards.py").write_text(REWARDS, encoding="utf-8")
    Path("prompts.csv").write_text("prompt\n" + "".join(f"Question {number}?\n" for number in range(4)))
    save_tiny_model(Path("tiny"), max_position_embeddings=4096)
    # Its engine, bits, optimizer and lengths are the script's; the model is a tiny one.
    flags = ["--model.path", "tiny", "--sampling.max_tokens", "16", "--sampling.group_size", "4"]
    assert main(["check", "guide/run.toml", *flags, "--json"]) in (0, 3)
    assert json.loads(capsys.readouterr().out)
