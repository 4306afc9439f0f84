"""Seconds by phase, and who is told how far a phase has come."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

Progress = Callable[[str, int, int], None]
"""Called with a phase, how much of it is done, and out of how much (0: not known)."""


def unwatched(phase: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


BESIDE_STEP = frozenset({"eval", "save", "load", "check", "export"})
"""Phases that are timed with a step and aren't part of it: how long it takes does not depend on them."""


def step_seconds(seconds: Mapping[str, float]) -> float:
    """Seconds of the step itself, of seconds by phase."""
    return sum(took for phase, took in seconds.items() if phase not in BESIDE_STEP)


class Clock:
    """Adds up the seconds of each phase of a step."""

    def __init__(self, progress: Progress = unwatched) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}
        self.mark: Callable[[str], AbstractContextManager[object]] = nullcontext
        """Called with each phase that begins, and entered for as long as it lasts: a profiler's label."""

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Counts what runs inside towards this phase."""
        self.progress(name, 0, 0)
        start = time.perf_counter()
        try:
            with self.mark(name):
                yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The seconds so far, which start again from nothing."""
        seconds, self.seconds = self.seconds, {}
        return seconds
