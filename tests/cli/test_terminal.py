"""A run as it is printed while it goes on."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from muster.cli.terminal import JsonView, TrainView
from muster.config import Config, from_mapping
from muster.records import StepReport


def config(**run: object) -> Config:
    return from_mapping(
        {
            "model": {"path": "m"},
            "data": {"path": "d"},
            "reward": {"use": "json_extraction"},
            "run": {"steps": 8, **run},
        }
    )


def printed(
    reports: list[StepReport], settings: Config, *, terminal: bool = False, table_every: int = 0
) -> tuple[str, str]:
    """What goes to stdout and to stderr."""
    out, err = io.StringIO(), io.StringIO()
    console = Console(file=out, width=120, force_terminal=terminal)
    with TrainView(settings, console, Console(file=err, width=120), table_every=table_every) as view:
        view.progress("load", 0, 0)
        view.say("reward json_extraction: per completion")
        for report in reports:
            view.progress("sample", 3, 8)
            view.show(report)
    return out.getvalue(), err.getvalue()


def test_a_step_is_one_line_with_what_a_person_follows(reports: list[StepReport]):
    out, err = printed(reports, config())
    lines = [line for line in out.splitlines() if line.startswith("step")]
    assert lines[2] == (
        "step 3/8  reward 0.625 ▁▃█  mixed 100%  length 3 (0% cut)  entropy 0.75  kl 0.03  clip 0.02  "
        "grad 0.75  5.2 s (sample 2.0 score 0.2 update 3.0)  6 tok/s  0:26 left"
    )
    assert "kl -  clip" in lines[0]  # it is not finite
    assert err.splitlines() == [
        "reward json_extraction: per completion",
        "step 2: slot 1 had no signal after 2 rounds of resampling",
    ]


def test_levels_are_counted_with_those_that_were_seen_before(reports: list[StepReport]):
    out, _ = printed(reports, config())
    levels = [line.strip() for line in out.splitlines() if line.startswith("  json_extraction")]
    assert levels[0] == "json_extraction  0: 7  0.2: 1"
    assert levels[3] == "json_extraction  0: 0  0.2: 0  0.5: 0  0.7: 1  1: 7"


def test_an_evaluation_is_a_line_with_its_interval(reports: list[StepReport]):
    out, _ = printed(reports, config())
    assert out.startswith("held-out reward at step 0: 0.05 (-0.075 to 0.175)\n")
    assert "held-out reward at step 4: 0.925 (0.8 to 1.05)\n" in out


def test_a_table_shows_a_good_and_a_bad_sample_and_those_that_reached_one(reports: list[StepReport]):
    out, _ = printed(reports, config(), table_every=4)
    assert "step 4: samples, 7 of 8 reached 1.0" in out
    assert '{"name": "Ada", "age": "36"}' in out
    assert '{"name": "Ada", "city": "Rome"}' in out
    assert "step 3: samples" not in out


def test_model_text_never_steers_the_terminal(reports: list[StepReport]):  # B74
    group, traces = reports[1].groups[0], reports[1].traces[0]
    hostile = replace(reports[1], groups=(replace(group, rollouts=group.rollouts[:1]),), traces=(traces[:1],))
    out, err = printed([hostile], config(), table_every=1)
    unwrapped = "".join(line.split("│")[4].strip() for line in out.splitlines() if line.startswith("│"))
    assert "\\x1b[2J\\x1b]0;owned\\x07[bold]not" in unwrapped
    assert "markup[/bold]\\u202eevil\\x00" in unwrapped
    assert not set("\x1b\x07\x00\r\u202e") & set(out + err)


def test_a_terminal_has_a_footer_with_phase_and_running_means(reports: list[StepReport]):
    out, _ = printed(reports, config(), terminal=True)
    assert "sample 3/8 · loss" in out
    # the losses of four steps; of 32 completions the last 20: 0.2 four times, step 3 and step 4
    assert f"loss {(0.5 + 0.25 + 0.5 / 3 + 0.125) / 4:.3g} (last 10 steps)" in out
    assert f"reward {(0.8 + 5.0 + 7.7) / 20:.3g} (last 20 completions)" in out
    assert "0:21 left" in out


def test_a_run_over_epochs_knows_how_much_is_left(reports: list[StepReport]):
    settings = config(steps=None, epochs=2)
    halfway = [replace(report, metrics={**report.metrics, "epoch": 0.5 * report.step}) for report in reports]
    out, _ = printed(halfway, settings)
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    assert lines[0].startswith("step 1  reward 0.025")
    assert [line.rpartition("tok/s  ")[2] for line in lines] == [
        "0:16 left",
        "0:10 left",
        "0:05 left",
        "0:00 left",
    ]


def test_json_is_one_line_of_metrics_per_step(reports: list[StepReport], capsys: pytest.CaptureFixture[str]):
    with JsonView() as view:
        view.say("loading")
        for report in reports:
            view.show(report)
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[1]["kl"] is None
    assert lines[4]["eval_reward"] == 0.925
    assert captured.err == "loading\n"
