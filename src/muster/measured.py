"""What was measured on this machine before, beside the converted models.

Without it a moment's load on the machine could decide anew at every start, and two runs would differ by
rounding. Who removes a file has it measured again.
"""

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from muster.converted import cache_folder
from muster.errors import CheckpointError
from muster.files import make_folder, write_atomic

Result = TypeVar("Result")


def recalled(
    name: str,
    about: Mapping[str, object],
    measure: Callable[[], Result],
    *,
    to_plain: Callable[[Result], object],
    from_plain: Callable[[object], Result],
) -> Result:
    """The result of that name that was measured here under the same circumstances, else measured now.

    `about` holds what decides besides processor, threads and torch. A file that can't be read or written
    costs measuring anew, as on the first run; `from_plain` may raise CheckpointError or ValueError.
    """
    circumstances = {
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **about,
    }
    digest = hashlib.sha256(json.dumps(circumstances).encode()).hexdigest()[:16]
    file = cache_folder() / f"{name}-{digest}.json"
    with suppress(OSError, ValueError, KeyError, TypeError, CheckpointError):
        return from_plain(json.loads(file.read_text(encoding="utf-8"))[name])
    result = measure()
    with suppress(OSError):
        make_folder(file.parent)
        write_atomic(file, json.dumps({**circumstances, name: to_plain(result)}, indent=1).encode())
    return result


def in_turns(works: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of each: the median of so many rounds in which they take turns, the first of which warms up."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for seconds, work in zip(taken, works, strict=True):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
    return [median(seconds[1:]) for seconds in taken]


def _processor() -> str:
    """The processor's name, where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
