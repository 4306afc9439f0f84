"""How a run is: by its lock where it is written, by its events, and by silence on other machines."""

import os
from pathlib import Path

import pytest

from muster.store import RunStore, state_of
from muster.store.lock import is_being_written, was_locked_here


def events(*kinds: str) -> list[dict[str, object]]:
    return [{"kind": kind} for kind in kinds]


def test_a_run_is_running_while_its_lock_is_held_and_killed_without_an_end(tmp_path: Path):
    folder = tmp_path / "run"
    with RunStore.create(folder, "", {}):
        assert is_being_written(folder)
        assert state_of(folder, events("start")) == "running"
        assert state_of(folder, events("start", "stopped"), age_s=1e6) == "running"
    assert not is_being_written(folder)
    assert state_of(folder, events("start")) == "killed"
    assert state_of(folder, events("start"), age_s=1.0) == "killed"
    assert state_of(folder, events("start", "stopped", "resume")) == "killed"


def test_a_lock_that_is_no_file_is_nobodys(tmp_path: Path):
    """A pipe would keep whoever opens it waiting for ever."""
    os.mkfifo(tmp_path / "lock")
    assert not is_being_written(tmp_path)
    assert was_locked_here(tmp_path) is False
    assert state_of(tmp_path, events("start"), age_s=1.0, pace_s=None) == "running"


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        (("start", "warning", "stopped"), "stopped"),
        (("start", "failure"), "failed"),
        (("start", "stopped", "resume", "start", "end", "warning"), "finished"),
        (("start", "finding"), "killed"),
        ((), "killed"),
    ],
)
def test_the_last_event_that_tells_of_it_says_how_a_run_ended(
    kinds: tuple[str, ...], state: str, tmp_path: Path
):
    assert state_of(tmp_path, events(*kinds)) == state


@pytest.mark.parametrize(
    ("age_s", "pace_s", "state"), [(1.0, None, "running"), (400.0, 2.0, "silent"), (400.0, 60.0, "running")]
)
def test_what_another_machine_writes_goes_on_until_it_is_silent(
    age_s: float, pace_s: float | None, state: str, tmp_path: Path
):
    (tmp_path / "lock").write_text(" process 7 on another-machine.example since 2026-01-02T03:04:05+00:00")
    assert state_of(tmp_path, events("start"), age_s=age_s, pace_s=pace_s) == state
    assert state_of(tmp_path, events("start", "end"), age_s=age_s, pace_s=pace_s) == "finished"
