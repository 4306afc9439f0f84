"""`muster show RUN --prompts`."""

import json
from pathlib import Path

import pytest

from muster.cli import main
from muster.store import read_rollouts

Capture = pytest.CaptureFixture[str]


def test_prompts_are_ranked_by_what_they_teach_and_by_their_scores(recorded: Path, capsys: Capture):
    assert main(["show", str(recorded), "--prompts"]) == 0
    out = capsys.readouterr().out
    assert out.index("teach most") < out.index("hardest") < out.index("easiest")
    assert "Ada is 36" in out, "the question is shown, not the rendered chat"
    assert "\x1b" not in out


def test_prompts_are_printed_as_json(recorded: Path, capsys: Capture):
    assert main(["show", str(recorded), "--prompts", "--json"]) == 0
    prompts = json.loads(capsys.readouterr().out)["prompts"]
    groups = [group for step in (1, 2, 3, 4) for group in read_rollouts(recorded, step).groups]
    assert {one["sample"] for one in prompts} == {group.sample.id for group in groups}
    assert sum(one["groups"] for one in prompts) == len(groups)
    for one in prompts:
        mine = [group for group in groups if group.sample.id == one["sample"]]
        assert one["prompt"] == mine[-1].prompt_text
        assert one["last_step"] == mine[-1].prompt.key.step
        varied = any(len({r.score.value for r in group.rollouts} - {None}) > 1 for group in mine)
        assert (one["variance"] > 0) == varied


@pytest.mark.parametrize("flag", ["--step", "--group"])
def test_prompts_are_about_the_whole_run(recorded: Path, capsys: Capture, flag: str):
    assert main(["show", str(recorded), "--prompts", flag, "1"]) == 2
    assert "--prompts is about the whole run" in capsys.readouterr().err


def test_a_run_without_a_step_has_no_prompts(recorded: Path, tmp_path: Path, capsys: Capture):
    (tmp_path / "meta.json").write_bytes((recorded / "meta.json").read_bytes())
    assert main(["show", str(tmp_path), "--prompts"]) == 0
    assert "0 prompts drawn" in capsys.readouterr().out
