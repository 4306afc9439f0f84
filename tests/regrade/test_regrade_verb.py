"""`muster regrade` as it is typed: what it prints, keeps, refuses and escapes."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.cli import main
from muster.store import read_regrade

Recorded = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]


def test_it_prints_both_sides_and_where_to_look(recorded: Recorded, capsys: Capture):
    folder = recorded("clipped")
    assert main(["regrade", str(folder), "--recipe", "dr_grpo"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert 'algo.recipe: "grpo" -> "dr_grpo"' in out
    assert "The run's own settings give 32 of its 32 recorded advantages to the last bit, and the" in out
    assert re.search(r"mean score +(-?[\d.]+) +\1\n", out)
    assert re.search(r"coefficients of \d+ tokens: cosine 0\.\d+, same sign 100%, norm after / before", out)
    assert re.search(r"step +mean score +groups mixed", out)
    (look,) = re.findall(r"look: \S+ (show .* --step \d --group \d)", out)
    kept = read_regrade(folder, "dr_grpo")
    assert look.endswith(
        f"--step {kept['changed_most'][0]['step']} --group {kept['changed_most'][0]['group']}"
    )
    assert main(look.split()) == 0


def test_as_json_it_is_what_the_file_holds(recorded: Recorded, capsys: Capture):
    folder = recorded("clipped")
    arguments = ["--reward", "regrade_rewards:short", "--steps", "2-3", "--name", "briefly", "--json"]
    assert main(["regrade", str(folder), *arguments]) == 0
    said = json.loads(capsys.readouterr().out)
    assert Path(said.pop("file")) == folder / "regrades" / "briefly.json"
    assert said == read_regrade(folder, "briefly")
    assert [step["step"] for step in said["steps"]] == [2, 3]


def test_nothing_is_kept_where_nothing_is_to_be_kept(recorded: Recorded, capsys: Capture):
    folder = recorded("clipped")
    own = ["--reward", "toy_rewards:low_bytes", "--reward", "regrade_rewards:short", "--recipe", "grpo"]
    assert main(["regrade", str(folder), *own, "--no-keep"]) == 0
    assert "Nothing changes: scores, advantages and coefficients are the recorded" in capsys.readouterr().out
    assert not (folder / "regrades").exists()


def test_what_a_reward_says_does_not_drive_the_terminal(recorded: Recorded, capsys: Capture):
    folder = recorded("clipped")
    assert main(["regrade", str(folder), "--reward", "regrade_rewards:moody", "--no-keep"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert re.search(r"a reward failed +0 +[1-9]", out)
    assert re.search(r"no reward judged +0 +[1-9]", out)
    assert "ValueError: no mood" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--recipe", "dr_grop"], "did you mean"),
        (["--reward", "char_cuont"], "did you mean"),
        (["--recipe", "grpo", "--algo.recipe", "dapo"], "are the same setting"),
        (["--recipe", "grpo", "--steps", "90-99"], "steps there: 1 to 4"),
        (["--recipe", "grpo", "--steps", "x"], "neither a step nor a range"),
        (["--recipe", "grpo", "--name", "../up"], "can't be the name of a file"),
        ([], "nothing is asked"),
        (["--optim.lr", "1"], "is no setting that stored rollouts can be regraded by"),
    ],
)
def test_usage_errors_end_with_2(arguments: list[str], said: str, recorded: Recorded, capsys: Capture):
    assert main(["regrade", str(recorded("clipped")), *arguments]) == 2
    assert said.casefold() in capsys.readouterr().err.casefold()


def test_a_folder_that_is_no_run_and_one_without_rollouts_are_told_apart(recorded: Recorded, capsys: Capture):
    assert main(["regrade", "nowhere", "--recipe", "dr_grpo"]) == 2
    assert "is no run" in capsys.readouterr().err
    folder = recorded("clipped")
    for path in (folder / "rollouts").iterdir():
        path.write_bytes(b"PAR1 nothing PAR1")
    assert main(["regrade", str(folder), "--recipe", "dr_grpo"]) == 1
    assert "holds no rollouts that can be read: step 1: " in capsys.readouterr().err
