"""`muster check` on tiny models: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest

from muster.cli import main
from muster.config import to_toml
from muster.store import read_events
from toy_run import config_for

Capture = pytest.CaptureFixture[str]


def toml(place: Path, folder: Path, **sections: dict[str, object]) -> str:
    file = folder / "run.toml"
    file.write_text(to_toml(config_for(place, folder / "runs", **sections)), encoding="utf-8")
    return str(file)


def test_a_run_that_can_learn_is_described_with_exit_code_0(place: Path, tmp_path: Path, capsys: Capture):
    file = toml(place, tmp_path, eval={"every": 2}, sampling={"max_tokens": 6})
    assert main(["check", file, "--groups", "4"]) == 0
    out = capsys.readouterr().out
    assert "4 prompts, 16 rollouts" in out
    assert "no signal     " in out
    assert "expected by group size: 4: " in out
    assert "turns         end with <|im_end|>, a stop token" in out
    assert "reward        low_bytes: mean " in out
    assert " ms a call, the slowest " in out
    assert "prompts       29 to 29 tokens, median 29; limit 122: none is longer" in out
    assert " for 4 steps, 3 evaluations of " in out
    assert "GB at its peak" in out
    assert "sampling.max_tokens = 12" in out
    assert out.splitlines()[-1] == "It can learn; the list says what to change first."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml"], "it leaves nothing"


def test_a_run_that_can_not_learn_is_exit_code_3_and_says_why(place: Path, tmp_path: Path, capsys: Capture):
    file = toml(place, tmp_path, reward={"use": ["toy_rewards:always_one"]})
    assert main(["check", file, "--groups", "2"]) == 3
    out = capsys.readouterr().out
    assert "1. all 8 rollouts of 2 prompts got the same reward, 1, the full one" in out
    assert "Train on harder prompts (data.path)" in out
    assert out.splitlines()[-1] == "It would not learn as it is: all right."


def test_a_failing_reward_is_said_with_its_text(place: Path, tmp_path: Path, capsys: Capture):
    (tmp_path / "broken.py").write_text("def reward(completion):\n    raise ValueError('no such column')\n")
    file = toml(place, tmp_path, reward={"use": [str(tmp_path / "broken.py:reward")]})
    assert main(["check", file, "--groups", "2"]) == 3
    out = capsys.readouterr().out
    assert "8 of 8 rollouts could not be scored; 8 times: reward raised ValueError: no such column" in out
    assert "failed        8 times: reward raised ValueError: no such column (broken.py, line 2)" in out


def test_a_wrong_configuration_is_exit_code_2(place: Path, tmp_path: Path, capsys: Capture):
    file = toml(place, tmp_path)
    assert main(["check", file, "--groups", "0"]) == 2
    assert "--groups is 0; allowed: at least 1 group" in capsys.readouterr().err
    assert main(["check", file, "--sampling.group_sise", "8"]) == 2
    assert "did you mean sampling.group_size?" in capsys.readouterr().err
    assert main(["check", file, "--data.max_prompt_tokens", "5"]) == 2
    assert "5 of 5 prompts are longer than 5 tokens" in capsys.readouterr().err


def test_as_json_it_is_one_object(place: Path, tmp_path: Path, capsys: Capture):
    assert main(["check", toml(place, tmp_path), "--groups", "2", "--json", "--data.overlong", "drop"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["would_learn"] is True
    assert [finding["name"] for finding in found["findings"]] == ["truncated"]
    assert found["findings"][0]["value"] == 8
    assert found["seen"]["num_rollouts"] == 8
    assert found["seen"]["expected"].keys() == {"4", "8", "16", "32", "64"}
    assert found["turn_end"] == {"token": "<|im_end|>", "stops": True}
    assert found["reward_calls"]["low_bytes"]["num_calls"] == 8
    costs = found["costs"]
    assert costs["total_s"] > costs["step_s"] * costs["num_steps"] > 0


def test_training_says_after_its_first_step_what_stands_in_the_way(
    place: Path, tmp_path: Path, capsys: Capture
):
    file = toml(place, tmp_path, reward={"use": ["toy_rewards:always_one"]}, run={"steps": 2})
    assert main(["train", file]) == 0
    said = capsys.readouterr().err
    assert "step 1: all 8 rollouts of 2 prompts got the same reward, 1, the full one" in said
    assert "step 2: all" not in said
    warnings = [event for event in read_events(tmp_path / "runs" / "toy") if event["kind"] == "warning"]
    assert [event["step"] for event in warnings if "Train on harder prompts" in event["text"]] == [1]


def test_other_machines_are_told_by_arithmetic(place: Path, tmp_path: Path, capsys: Capture):
    file = toml(place, tmp_path)
    assert main(["check", file, "--devices", "1,2x4+2", "--assume", "network=25e9"]) == 0
    out = capsys.readouterr().out
    assert (
        "a step: 2 prompts, 8 rollouts, 1 update; prompts of 29.0 tokens (mean), completions of up to 4"
        in out
    )
    assert "all trained; computed in float32" in out
    assert "  network       2.5e+10     bytes/s: out of a node, all its adapters together (given)" in out
    assert [line.split() for line in out.splitlines() if line.strip().startswith("1 ")] == [["1", "2x4+2"]]
    for title in (
        "GB on a device",
        "MB sent by each, a step",
        "seconds of a step",
        "speed-up, up to 4 devices",
    ):
        assert title in out
    assert "Scaling stops at " in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml"], "it leaves nothing"
    assert main(["check", file, "--devices", "1", "--assume", "memory=1e6"]) == 3
    assert "1 does not fit into the memory of its devices." in capsys.readouterr().out


def test_other_machines_as_json_from_what_was_measured_here(place: Path, tmp_path: Path, capsys: Capture):
    file = toml(place, tmp_path)
    arguments = ["--devices", "1,8", "--measured", "--groups", "2", "--assume", "link=1e9", "--json"]
    assert main(["check", file, *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_measured"] is True
    assert [layout["layout"] for layout in found["layouts"]] == ["1", "8"]
    assert found["layouts"][0]["speedup"] == pytest.approx(1.0)
    assert found["assumptions"]["link"] == {
        "name": "link",
        "value": 1e9,
        "unit": "bytes/s",
        "about": "from a device to the others of its node",
        "source": "given",
    }
    assert found["layouts"][1]["parts"][0].keys() == {"name", "phase", "seconds", "sent"}
    assert found["limit"]["part"]["name"] in {part["name"] for part in found["curve"][-1]["parts"]}


def test_what_other_machines_have_no_use_for_is_refused(place: Path, tmp_path: Path, capsys: Capture):
    file = toml(place, tmp_path)
    for arguments, says in (
        (["--devices", "4x"], "--devices names '4x'; allowed: "),
        (["--assume", "link=1"], "name some with --devices"),
        (["--measured"], "name some with --devices"),
        (["--devices", "1", "--groups", "2"], "nothing is sampled without --measured"),
        (["--devices", "1", "--assume", "links=1"], "Did you mean 'link'?"),
    ):
        assert main(["check", file, *arguments]) == 2
        assert says in capsys.readouterr().err
