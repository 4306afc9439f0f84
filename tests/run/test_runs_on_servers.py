"""Whole runs whose completions come from servers: trained, saved where these are lost, gone on with."""

import json
from pathlib import Path

import pytest

from fake_vllm import FakeVllm, served_by, start_policy
from muster import using
from muster.algo.ratios import truncate
from muster.assemble import build_recipe
from muster.checkpoint import find
from muster.config import compare
from muster.errors import ConfigError, EngineLostError
from muster.preflight import preflight
from muster.run import Watchers, run
from toy_run import config_for


def lines_of(folder: Path, name: str):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_run_on_servers_trains_evaluates_and_exports(place, tmp_path, fakes):
    config = config_for(place, tmp_path, eval={"every": 2}, run={"steps": 3}, engine=served_by(fakes))
    assert [report.step for report in run(config)] == [0, 1, 2, 3]
    lines = lines_of(tmp_path / "toy", "metrics.jsonl")
    assert all(0 <= line["sampling/mismatch"] < 1e-4 for line in lines if line["step"])
    assert all(line["eval_sampling/mismatch"] < 1e-4 for line in lines if "eval_sampling/mismatch" in line)
    assert (tmp_path / "toy" / "final" / "model.safetensors").is_file()
    assert build_recipe(config).correction is truncate
    # What was trained is measured on the servers too.
    report = using.evaluate(config, model_path=tmp_path / "toy" / "final")
    assert report.metrics["eval_num_prompts"] == 2
    assert all(fake.version.startswith("muster-") for fake in fakes)


def test_a_run_that_loses_its_servers_is_saved_and_goes_on_with_others(place, tmp_path, fakes):
    config = config_for(place, tmp_path, run={"steps": 4}, engine=served_by(fakes))
    whole = config_for(place, tmp_path / "whole", run={"steps": 4}, engine=served_by(fakes))
    expected = [report.metrics for report in run(whole)]

    said: list[str] = []
    reports = run(config, watchers=Watchers(say=said.append))
    assert [next(reports).step, next(reports).step] == [1, 2]
    for fake in fakes:
        fake.stop()
    with pytest.raises(EngineLostError, match="no server has answered"):
        next(reports)
    found, _ = find(tmp_path / "toy" / "checkpoints")
    assert found is not None
    assert int(found.name) == 2
    assert "Checkpoint 000002 stands" in said[-1]
    assert lines_of(tmp_path / "toy", "events.jsonl")[-1]["error"] == "EngineLostError"

    other = FakeVllm(start_policy)
    try:
        rest = list(
            run(config_for(place, tmp_path, run={"steps": 4}, engine=served_by([other])), resume=True)
        )
    finally:
        other.stop()
    assert [report.step for report in rest] == [3, 4]
    for report, before in zip(rest, expected[2:], strict=True):
        assert report.metrics["reward"] == before["reward"]
        assert report.metrics["loss"] == pytest.approx(before["loss"], abs=1e-5)


def test_a_check_before_the_run_samples_on_the_servers(place, tmp_path, fakes):
    found = preflight(config_for(place, tmp_path, run={"steps": 2}, engine=served_by(fakes)), num_groups=2)
    assert found.seen.num_rollouts == 8
    assert any(fake.bodies for fake in fakes)


def test_options_are_refused_before_anything_is_loaded(place, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    for options, says in (({"url": "http://h"}, "urls"), ({"key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY")):
        with pytest.raises(ConfigError, match=says):
            next(run(config_for(place, tmp_path, engine={"kind": "vllm", "options": options})))
    top_p = config_for(place, tmp_path, engine={"kind": "vllm"}, sampling={"top_p": 0.9})
    with pytest.raises(ConfigError, match=r"sampling\.top_k"):
        next(run(top_p))
    assert not (tmp_path / "toy").exists()


def test_a_resumed_run_may_have_other_servers_and_no_other_engine(place, tmp_path):
    def settings(kind, url):
        return config_for(place, tmp_path, engine={"kind": kind, "options": {"urls": url} if url else {}})

    moved = compare(settings("vllm", "http://a"), settings("vllm", "http://b"))
    assert not moved.changing
    assert len(moved.harmless) == 1
    assert compare(settings("local", ""), settings("vllm", "http://b")).changing
