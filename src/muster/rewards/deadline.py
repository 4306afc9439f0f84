"""A limit on processor time for Python code, from any thread and without signals.

For work that is expected to be short and can't be made so: what it costs is the processor's time, so that
the verdict doesn't depend on how busy the machine is. One long step of compiled code isn't interrupted;
that is left to the limit of the process it runs in.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")

_POLL_S = 0.02
_ending = threading.Lock()


class OutOfTimeError(BaseException):
    """Raised inside the work; not an Exception, so that the work's own handlers let it pass."""


class _Work(threading.Thread, Generic[Result]):
    """A thread that keeps what its function returns or raises, and counts its own processor time."""

    def __init__(self, function: Callable[[], Result]) -> None:
        super().__init__(name="limited work", daemon=True)
        self.results: list[Result] = []
        self.error: Exception | None = None
        self._function = function
        self._spent: Callable[[], float] = lambda: 0.0

    def run(self) -> None:
        self._spent = _cpu_clock()
        try:
            self.results.append(self._function())
        except Exception as error:
            self.error = error
        except OutOfTimeError:
            pass

    def spent(self) -> float:
        try:
            return self._spent()
        except OSError:  # it has just ended
            return 0.0


def within_cpu_seconds(seconds: float, function: Callable[[], Result]) -> Result:
    """What the function returns, or what it raises; TimeoutError once it has taken longer."""
    work = _Work(function)
    work.start()
    work.join(_POLL_S)
    while work.is_alive():
        if work.spent() > seconds:
            _end(work)
        work.join(_POLL_S)
    if work.error is not None:
        raise work.error
    if not work.results:
        raise TimeoutError(f"took more than {seconds:g} s of processor time")
    return work.results[0]


def _end(work: threading.Thread) -> None:
    """Raises in the work until it has ended: a handler deep in it may swallow one exception, or a few.

    Python prints what is raised inside of a finalizer, and goes on; that is not to be seen.
    """
    with _ending:
        shown = sys.unraisablehook
        sys.unraisablehook = lambda raised: None if raised.exc_type is OutOfTimeError else shown(raised)
        try:
            while work.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(work.ident or 0), ctypes.py_object(OutOfTimeError)
                )
                work.join(_POLL_S)
        finally:
            sys.unraisablehook = shown


def _cpu_clock() -> Callable[[], float]:
    """Processor seconds of this thread, for any other to read; of the process where threads have no clock."""
    get_clock = getattr(time, "pthread_getcpuclockid", None)
    if get_clock is None:
        start = time.process_time()
        return lambda: time.process_time() - start
    clock = get_clock(threading.get_ident())
    return lambda: time.clock_gettime(clock)
