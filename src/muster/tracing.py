"""A trace of a few steps: what a run's time is spent on, operation by operation."""

from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from muster.clock import Clock
from muster.files import publish_by
from muster.records import StepReport

NUM_STEPS = 2
"""Steps in a trace."""


def traced(
    reports: Iterable[StepReport], path: Path, clock: Clock, say: Callable[[str], None]
) -> Generator[StepReport]:
    """The same reports; a trace of the steps after the first goes to the path, in Chrome's format.

    The first step pays for what is done once, so it is left out. The run's phases are labels in the
    trace. Two steps are traced, or as many as are taken.
    """
    left = NUM_STEPS
    profiler: profile | None = None
    try:
        for report in reports:
            if profiler is not None and report.groups:
                left -= 1
                if left == 0:
                    _write(profiler, path, clock, say)
                    profiler = None
            yield report
            if profiler is None and left and report.groups:
                profiler = _start(clock)
    finally:
        if profiler is not None and left < NUM_STEPS:
            _write(profiler, path, clock, say)
        elif left:
            if profiler is not None:
                clock.mark = nullcontext
                profiler.stop()
            say("no trace was written: it needs a step after the first")


def _start(clock: Clock) -> profile:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities)
    profiler.start()
    clock.mark = record_function
    return profiler


def _write(profiler: profile, path: Path, clock: Clock, say: Callable[[str], None]) -> None:
    clock.mark = nullcontext
    profiler.stop()
    try:
        publish_by(lambda temporary: profiler.export_chrome_trace(str(temporary)), path)
    except OSError as error:
        # A run goes on without its trace.
        say(f"no trace was written: {error}")
        return
    say(f"trace written to {path}: open it in Perfetto, or chrome://tracing")
