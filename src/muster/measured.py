"""What was measured on this machine before, beside the converted models.

Without it a moment's load on the machine could decide anew at every start, and two runs would differ by
rounding. Who removes a file has it measured again.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
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
        write_atomic(file, json.dumps({name: to_plain(result), **circumstances}, indent=1).encode())
    return result


def _processor() -> str:
    """The processor's name, where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
