"""Time that is left, after a resume and when the clock of the machine jumps."""

import time
from dataclasses import replace

import pytest

from muster.cli.terminal import History
from muster.clock import Clock
from muster.config import Config, from_mapping
from muster.records import StepReport


def config(**run: object) -> Config:
    data = {"model": {"path": "m"}, "data": {"path": "d"}, "reward": {"use": "json_extraction"}}
    return from_mapping({**data, "run": run})


def step(number: int, seconds: float, epoch: float = 0.0) -> StepReport:
    return StepReport(
        step=number, groups=(), traces=(), metrics={"epoch": epoch}, timings={"sample": seconds, "save": 99.0}
    )


def test_after_a_resume_only_the_steps_that_are_left_count():  # P30
    history = History(config(steps=10))
    history.add(step(7, 2.0))
    assert history.seconds_left == pytest.approx(3 * 2.0)
    history.add(step(8, 4.0))
    assert history.seconds_left == pytest.approx(2 * 3.0)


def test_epochs_tell_how_far_a_run_is():
    history = History(config(epochs=2))
    history.add(step(6, 2.0, epoch=1.5))
    assert history.seconds_left == pytest.approx(2 * 2.0)


def test_the_last_step_leaves_nothing_and_one_beyond_no_less():
    history = History(config(steps=10))
    history.add(step(10, 2.0))
    assert history.seconds_left == 0
    history.add(step(11, 2.0))
    assert history.seconds_left == 0


def test_a_clock_that_is_set_back_changes_no_duration(monkeypatch: pytest.MonkeyPatch):
    wall = iter(range(10**9, 0, -86_400))
    monkeypatch.setattr(time, "time", lambda: float(next(wall)))
    monkeypatch.setattr(time, "time_ns", lambda: 10**9 * next(wall))
    assert time.time() > time.time(), "days go by backwards"
    clock = Clock()
    for _ in range(3):
        with clock.phase("sample"):
            pass
    seconds = clock.take()["sample"]
    assert 0 <= seconds < 60
    history = History(config(steps=10))
    history.add(replace(step(1, 0.0), timings={"sample": seconds}))
    assert history.seconds_left is not None
    assert 0 <= history.seconds_left < 600
