"""Seconds by phase, and who is told how far a phase has come."""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

Progress = Callable[[str, int, int], None]
"""Called with a phase, how much of it is done, and out of how much (0: not known)."""


def unwatched(phase: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


def settled() -> None:
    """What a phase ends with where nothing goes on by itself."""


AHEAD = "ahead"
"""Of a step's seconds those in which later steps were sampled beside it: they took none of its time."""
BESIDE_STEP = frozenset({"eval", "save", "load", "check", "export", AHEAD})
"""Phases that are timed with a step and aren't part of it: how long it takes does not depend on them."""


def step_seconds(seconds: Mapping[str, float]) -> float:
    """Seconds of the step itself, of seconds by phase."""
    return sum(took for phase, took in seconds.items() if phase not in BESIDE_STEP)


class Clock:
    """Adds up the seconds of each phase of a step."""

    def __init__(self, progress: Progress = unwatched, settle: Callable[[], object] = settled) -> None:
        """`settle` is called as a phase ends: it waits for a device that works on by itself."""
        self.progress = progress
        self.settle = settle
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
            self.settle()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The seconds so far, which start again from nothing."""
        seconds, self.seconds = self.seconds, {}
        return seconds

    def count(self, name: str, seconds: float) -> None:
        """Adds seconds that were taken otherwise to a phase."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


class Overlap:
    """Adds up the seconds in which one thread works while another, whom it works for, does not wait."""

    def __init__(self) -> None:
        self.is_awaited = False
        self._works = False
        self._since = 0.0
        self._seconds = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def working(self) -> Generator[None]:
        """The work, on its own thread."""
        self._turn(works=True)
        try:
            yield
        finally:
            self._turn(works=False)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """A wait for it."""
        self._turn(is_awaited=True)
        try:
            yield
        finally:
            self._turn(is_awaited=False)

    def take(self) -> float:
        """The seconds so far, which start again from nothing."""
        self._turn()
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _turn(self, *, works: bool | None = None, is_awaited: bool | None = None) -> None:
        """Counts what has passed, then goes on as told."""
        with self._lock:
            now = time.perf_counter()
            if self._works and not self.is_awaited:
                self._seconds += now - self._since
            self._since = now
            self._works = self._works if works is None else works
            self.is_awaited = self.is_awaited if is_awaited is None else is_awaited
