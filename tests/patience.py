"""Times measured on a machine that may be busy with something else."""

import time
from collections.abc import Callable

TRIES = 3


def least_cpu_s(call: Callable[[], object], enough: float) -> float:
    """Processor seconds of a call, tried again where it took longer than is enough; the least of three.

    Another process on the same core, or a thread of another test, lengthens one try, and hardly all of them.
    """
    least = float("inf")
    for _ in range(TRIES):
        started = time.process_time()
        call()
        least = min(least, time.process_time() - started)
        if least < enough:
            break
    return least
