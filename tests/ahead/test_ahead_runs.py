"""Whole runs that sample ahead: stopped and gone on with, bereft of their sampler, on servers, refused."""

import json
import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from beside import pids
from fake_vllm import FakeVllm, served_by, start_policy
from muster import checkpoint, using
from muster.algo.recipes import GRPO, VESPO
from muster.checkpoint import find
from muster.cli.outcome import ahead_line
from muster.config import compare
from muster.dist import joined
from muster.engine_setup import engine_options, in_turn, refuse_uncorrected
from muster.errors import CheckpointError, ConfigError, EngineError, EngineLostError
from muster.preflight import preflight
from muster.run import Watchers, run
from muster.store import read_events, read_timings
from ranks_of import on_ranks
from tiny import tiny_model
from toy_run import config_for, content, number, write_rows

AHEAD = {"ahead": 1, "options": {"products": "linear"}}
VARIANTS = {
    "every part": {
        "algo": {"minibatches": 2, "kl_coef": 0.05},
        "eval": {"every": 2, "group_size": 2},
        "engine": AHEAD,
    },
    "an adapter, two steps ahead, prompts by signal": {
        "model": {"lora": {"rank": 4, "alpha": 8.0}},
        "algo": {"resample": 1, "kl_coef": 0.05},
        "data": {"draw": "by_signal"},
        "reward": {"use": ["toy_rewards:every_third"]},
        "engine": {**AHEAD, "ahead": 2},
    },
}


def config(place: Path, folder: Path, variant: str, **sections):
    write_rows(place / "many.jsonl", [f"question {number}" for number in range(9)])
    merged = {name: dict(values) for name, values in VARIANTS[variant].items()}
    merged["data"] = {**merged.get("data", {}), "path": str(place / "many.jsonl")}
    merged["run"] = {"steps": 5, "save_every": 1, "keep": 9}
    for name, values in sections.items():
        merged[name] = {**merged.get(name, {}), **values}
    return config_for(place, folder, **merged)


def stop_after(step: int, settings) -> None:
    half = run(settings)
    for report in half:
        if report.step == step:
            break
    half.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_was_stopped_goes_on_as_the_whole(place, tmp_path, variant):  # P1
    reports = [report for report in run(config(place, tmp_path / "whole", variant)) if report.step]
    assert all(number(report, "sampling/mismatch") < 1e-4 for report in reports)
    num_ahead = VARIANTS[variant]["engine"]["ahead"]
    assert max(number(report, "sampling/staleness/max") for report in reports) == num_ahead
    whole = content(tmp_path / "whole" / "toy")
    assert any(name.endswith("/ahead.json") for name in whole)

    settings = config(place, tmp_path, variant)
    stop_after(3, settings)
    list(run(settings, resume=True))
    resumed = content(tmp_path / "toy")
    assert whole.keys() == resumed.keys()
    assert [name for name in whole if whole[name] != resumed[name]] == []
    lines = read_timings(tmp_path / "toy")
    gained = sum(line["ahead_s"] for line in lines if line["step"])
    assert gained > 0
    said = ahead_line(lines).partition(" s of sampling ran beside the steps")[0]
    assert float(said.removeprefix("ahead: ").replace(",", "")) == pytest.approx(gained, rel=0.01)


def test_what_sampling_ahead_saved_is_said_in_seconds():
    lines = [
        {"step": 1, "seconds": {"sample": 4.0, "backward": 5.0, "eval": 50.0}, "ahead_s": 3.0},
        {"step": 2, "seconds": {"sample": 1.0, "backward": 5.0, "save": 9.0}, "ahead_s": 2.0},
    ]
    assert ahead_line(lines) == (
        "ahead: 5 s of sampling ran beside the steps, which waited 5 s for it: they took 15 s instead of "
        "20 s in turns at the same pace, 25% saved"
    )
    assert ahead_line([{"step": 1, "seconds": {"sample": 4.0}}]) == ""


def test_a_run_whose_sampler_is_killed_is_saved_and_goes_on(place, tmp_path):
    off = {"every": 0, "at_start": False}
    settings = config(place, tmp_path, "every part", eval=off, run={"save_every": 0})
    said: list[str] = []
    reports = run(settings, watchers=Watchers(say=said.append))
    assert next(reports).step == 1
    os.kill(pids[-1], signal.SIGKILL)
    with pytest.raises(EngineLostError, match="killed by SIGKILL"):
        list(reports)
    found, skipped = find(tmp_path / "toy" / "checkpoints")
    assert found is not None
    assert not skipped
    assert f"Checkpoint {found.name} stands" in said[-1]
    [failure] = [event for event in read_events(tmp_path / "toy") if event["kind"] == "failure"]
    assert failure["error"] == "EngineLostError"
    rest = [report.step for report in run(settings, resume=True)]
    assert rest == list(range(int(found.name) + 1, 6))


def test_nothing_is_left_behind_by_a_run_that_ends(place, tmp_path):
    with closing(run(config(place, tmp_path, "every part"))) as reports:
        next(reports)
        process = pids[-1]
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_completions_of_a_checkpoint_that_are_none_are_refused(place, tmp_path):
    settings = config(place, tmp_path, "every part", run={"steps": 3})
    stop_after(2, settings)
    newest, _ = find(tmp_path / "toy" / "checkpoints")
    assert newest is not None
    kept = json.loads((newest / "ahead.json").read_text())
    [flight] = kept["flights"]
    assert (flight["step"], flight["synced"], len(flight["completions"])) == (3, 1, 2)
    saved = checkpoint.load(newest, tiny_model().device)
    for broken in ({"step": 3}, {**flight, "indices": [0, 99]}):
        checkpoint.save(newest.parent, 2, replace(saved, ahead={"flights": [broken], "threads": 1}))
        with pytest.raises(CheckpointError, match=r"ahead\.json of the checkpoint can't be read"):
            list(run(settings, resume=True))
    checkpoint.save(
        newest.parent, 2, replace(saved, ahead={"flights": [{**flight, "synced": 0}], "threads": 1})
    )
    with pytest.raises(EngineError, match=r"2 steps behind.*remove the newest one's folder"):
        list(run(settings, resume=True))


def test_a_run_leaves_the_number_of_threads_as_it_was(place, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        list(run(config_for(place, tmp_path, engine={"ahead": 1}, run={"steps": 1, "threads": None})))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_servers_sample_ahead_and_a_run_that_loses_them_goes_on_with_others(place, tmp_path, fakes):
    engine = served_by(fakes, ahead=1)
    whole = config_for(place, tmp_path / "whole", eval={"every": 2}, run={"steps": 4}, engine=engine)
    expected = {report.step: report for report in run(whole)}
    for step in range(1, 5):
        report = expected[step]
        versions = {r.completion.version for g in report.groups for r in g.rollouts}
        assert versions == {max(0, step - 2)}
        assert number(report, "sampling/mismatch") < 1e-4
        assert number(report, "sampling/staleness/max") == min(step - 1, 1)

    settings = config_for(place, tmp_path, run={"steps": 4}, engine=engine)
    reports = run(settings)
    assert [next(reports).step, next(reports).step] == [1, 2]
    for fake in fakes:
        fake.stop()
    with pytest.raises(EngineLostError, match="no server has answered"):
        list(reports)
    found, _ = find(tmp_path / "toy" / "checkpoints")
    assert found is not None
    other = FakeVllm(start_policy)
    try:
        moved = config_for(place, tmp_path, run={"steps": 4}, engine=served_by([other], ahead=1))
        rest = list(run(moved, resume=True))
    finally:
        other.stop()
    assert rest[-1].step == 4


def test_what_does_nothing_meanwhile_samples_in_turn(place, tmp_path):
    settings = config(place, tmp_path, "every part", engine={**AHEAD, "options": {"threads": 1}})
    num_processes = len(pids)
    assert in_turn(settings).engine.ahead == 0
    assert preflight(settings, num_groups=2).seen.num_rollouts == 8
    assert using.evaluate(settings).metrics["eval_num_prompts"] == 2
    assert len(pids) == num_processes


def test_settings_that_sampling_ahead_does_not_go_with_are_refused(place, tmp_path):
    def refused(match, **sections):
        with pytest.raises(ConfigError, match=match):
            next(run(config_for(place, tmp_path, **sections)))

    refused(r"sampling\.sync_every is above 1", engine=AHEAD, sampling={"sync_every": 2})
    refused(r'algo\.correction is "none"', engine=AHEAD, algo={"correction": "none"})
    refused(r"engine\.options\.threads is 1", engine={"options": {"threads": 1}})
    refuse_uncorrected(GRPO, 1)
    refuse_uncorrected(VESPO, 1)
    was, now = (
        config_for(place, tmp_path, engine=AHEAD),
        config_for(place, tmp_path, engine={**AHEAD, "ahead": 2}),
    )
    assert compare(was, now).changing
    assert not (tmp_path / "toy").exists()


def test_several_processes_sample_ahead_on_servers_alone(place, tmp_path):
    settings = config_for(place, tmp_path, engine=AHEAD)
    on_servers = {"kind": "vllm", "ahead": 1, "options": {"urls": ["http://127.0.0.1:8000"]}}
    served = config_for(place, tmp_path, engine=on_servers)

    def work(_):
        with joined():
            assert engine_options(served)
            with pytest.raises(ConfigError, match="in a run of 2 processes: each would start another one"):
                engine_options(settings)

    assert on_ranks(2, tmp_path / "log", work) == [0, 0]
