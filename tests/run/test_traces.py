"""What `--profile` leaves behind."""

import json

from muster.run import Watchers, run
from muster.store import read_timings
from toy_run import config_for


def _labels(path):
    """Each label in the trace and how often it stands there."""
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert any(event["name"] == "aten::mm" for event in events)
    return {name: names.count(name) for name in names}


def test_a_trace_holds_two_steps_with_their_phases_and_changes_nothing(place, tmp_path):
    said = []
    watchers = Watchers(say=said.append)
    list(run(config_for(place, tmp_path / "traced"), watchers=watchers, profile=True))
    trace = tmp_path / "traced" / "toy" / "trace.json"
    labels = _labels(trace)
    assert {name: labels[name] for name in ("sample", "score", "optimizer", "sync", "write")} == {
        "sample": 2, "score": 2, "optimizer": 2, "sync": 2, "write": 1
    }  # fmt: skip
    assert f"trace written to {trace}: open it in Perfetto, or chrome://tracing" in said
    list(run(config_for(place, tmp_path / "plain")))
    assert not (tmp_path / "plain" / "toy" / "trace.json").exists()
    both = [(tmp_path / kind / "toy" / "metrics.jsonl").read_bytes() for kind in ("traced", "plain")]
    assert both[0] == both[1]


def test_a_run_too_short_for_two_steps_is_traced_as_far_as_it_goes(place, tmp_path):
    said = []
    watchers = Watchers(say=said.append)
    two = config_for(place, tmp_path / "two", run={"steps": 2})
    list(run(two, watchers=watchers, profile=True))
    assert _labels(tmp_path / "two" / "toy" / "trace.json")["sample"] == 1
    one = config_for(place, tmp_path / "one", run={"steps": 1})
    list(run(one, watchers=watchers, profile=True))
    assert "no trace was written: it needs a step after the first" in said
    assert not (tmp_path / "one" / "toy" / "trace.json").exists()


def test_every_phase_of_a_step_is_timed_with_its_speed(place, tmp_path):
    settings = {"algo": {"kl_coef": 0.1, "passes": 2}, "eval": {"every": 2}, "run": {"save_every": 1}}
    list(run(config_for(place, tmp_path, **settings)))
    line = read_timings(tmp_path / "toy")[2]
    assert line["step"] == 2
    assert line["seconds"].keys() == {
        "sample", "score", "reference", "old", "forward", "backward", "optimizer", "sync", "write", "save",
        "eval",
    }  # fmt: skip
    assert line["tokens"] > 0
    for name, seconds in line["seconds"].items():
        assert line["tokens_per_second"][name] == line["tokens"] / seconds
