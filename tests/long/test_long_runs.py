"""A run holds after many steps what it held after few: memory, descriptors, threads, processes, pace."""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from muster.run import run
from process_state import Held, held
from toy_run import config_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")

SETTLED = 1_000
"""Steps after which caches are filled and allocators have what they need."""
NUM_STEPS = 10_000
WINDOW = 500
"""Steps over which a pace is measured."""


class Mark(NamedTuple):
    """What is held after a step, and the pace of the steps before it."""

    step: int
    held: Held
    cpu_ms: float
    """Processor time of a step of the run's process; another process on the machine doesn't lengthen it."""


def marks(place: Path, folder: Path, num_steps: int, at: set[int], every: int) -> list[Mark]:
    """A toy run with rewards in the pool that saves and evaluates every few steps, measured after `at`."""
    config = config_for(
        place,
        folder,
        reward={"workers": 2},
        eval={"every": every, "at_start": False},
        run={"steps": num_steps, "save_every": every},
    )
    found: list[Mark] = []
    spent = {0: time.process_time()}
    for report in run(config):
        spent[report.step] = time.process_time()
        if report.step in at:
            start = max(0, report.step - WINDOW)
            pace = 1_000 * (spent[report.step] - spent[start]) / (report.step - start)
            found.append(Mark(report.step, held(), pace))
    return found


def test_a_run_of_hundreds_of_steps_keeps_no_descriptor_thread_or_process(place: Path, tmp_path: Path):
    before = held().children
    first, last = marks(place, tmp_path, 200, {40, 160}, 40)
    assert first.held.descriptors == last.held.descriptors
    assert first.held.threads == last.held.threads
    assert first.held.children == last.held.children == before + 3  # the fork server and two workers
    assert first.held.workers_descriptors == last.held.workers_descriptors
    assert last.held.memory_mib < first.held.memory_mib + 16


@pytest.mark.slow
def test_ten_thousand_steps_hold_what_a_thousand_did(place: Path, tmp_path: Path, capsys):
    at = {SETTLED, *range(2 * SETTLED, NUM_STEPS + 1, SETTLED)}
    found = marks(place, tmp_path, NUM_STEPS, at, SETTLED)
    with capsys.disabled():
        for mark in found:
            print(f"\nstep {mark.step}: {mark.held} {mark.cpu_ms:.1f} ms of processor time a step", end="")
        print()
    first, last = found[0], found[-1]
    assert last.held.memory_mib < first.held.memory_mib * 1.05
    assert last.held.workers_mib < first.held.workers_mib * 1.05
    assert last.held._replace(memory_mib=0, workers_mib=0) == first.held._replace(memory_mib=0, workers_mib=0)
    assert last.cpu_ms < first.cpu_ms * 1.15
