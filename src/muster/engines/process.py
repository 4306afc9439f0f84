"""Sampling in a process of its own on this machine, which holds a copy of the model.

Orders and answers are JSON, a line each, over two pipes. Weights go through a folder, as safetensors: in
memory where the system has a place for that.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from safetensors.torch import save_file
from torch import Tensor

import muster
from muster.engines.answers import Label
from muster.engines.base import Sampling, untold
from muster.engines.plain import as_groups, plain_prompt, plain_sampling
from muster.engines.products import Choice, restored
from muster.engines.shelf import Load
from muster.errors import EngineError, EngineLostError
from muster.files import discard, free_bytes, need_room, write_by
from muster.records import Completion, Prompt

MODULE = "muster.sampling_process"
_MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory."""
_ENDING_S = 5.0
"""A process whose answers break off ends by itself within this time."""


class Started(NamedTuple):
    """A process that samples, as its parent sees it."""

    orders: IO[bytes]
    answers: IO[bytes]
    end: Callable[[float], int | None]
    """Waits so many seconds for its end, then makes one; its exit code, where it ended by itself."""
    errors: IO[bytes] | None = None
    """What it writes as errors."""


class SamplerProcess:
    """The process that samples; `start` says how it is started."""

    def __init__(
        self,
        begin: Mapping[str, object],
        *,
        room: int,
        progress: Callable[[int, int], None] = untold,
        start: Callable[[], Started] | None = None,
    ) -> None:
        """`begin` says what to sample with; `room` is what the weights that may lie ready take, in bytes.

        Raises EngineError with the reason where it can't load the model.
        """
        self.progress = progress
        self._folder = Path(tempfile.mkdtemp(prefix="muster-weights-", dir=_place_for(room)))
        self._started = (start or _starters[-1])()
        try:
            said = self._ask({"do": "begin", "folder": str(self._folder), **begin})
        except BaseException:
            self.close()
            raise
        self.choice = restored(said["products"])
        """How products are computed."""
        self.threads = int(said["threads"])
        self.quantized: str | None = said["quantized"]
        """Digest of the weights that are quantised; None where none are."""

    def compute_as(self, choice: Choice, threads: int) -> None:
        """Samples by these products on so many threads from now on: to the last bit as before a resume."""
        self._ask({"do": "compute", "products": choice._asdict(), "threads": threads})
        self.choice, self.threads = choice, threads

    def put(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Load:
        """Writes these weights to where the process reads them."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
        path = self._folder / f"{version}.safetensors"
        needed = sum(tensor.nbytes for tensor in tensors.values())
        need_room(path, needed)
        write_by(partial(save_file, tensors), path, needed)
        return Load(Label(name=path.name, version=version, is_adapter=False), path)

    def sample(self, load: Load, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """`group_size` completions for each prompt, by these weights; EngineLostError where it is gone."""
        order = {
            "do": "sample",
            "weights": str(load.folder),
            "version": load.label.version,
            "prompts": [plain_prompt(prompt) for prompt in prompts],
            "sampling": plain_sampling(sampling),
        }
        return as_groups(self._ask(order)["completions"])

    def drop(self, load: Load) -> None:
        """Removes these weights."""
        discard(load.folder)

    def close(self) -> None:
        """Ends the process, and removes what was written for it."""
        self._started.end(0.0)
        for file in (self._started.orders, self._started.answers, self._started.errors):
            with suppress(OSError):
                if file is not None:
                    file.close()
        discard(self._folder)

    def _ask(self, order: Mapping[str, object]) -> dict[str, Any]:
        """The answer to an order, which may be preceded by progress."""
        with suppress(OSError, ValueError):
            self._started.orders.write(json.dumps(order).encode() + b"\n")
            self._started.orders.flush()
        while (answer := self._read()) is not None:
            if "progress" in answer:
                self.progress(*answer["progress"])
            elif "failed" in answer:
                raise EngineError(
                    f"the process that samples failed: {answer['failed']}. With engine.ahead = 0 the run "
                    "samples in its own process."
                )
            else:
                return answer
        raise EngineLostError(self._why_gone())

    def _read(self) -> dict[str, Any] | None:
        """What it says next; None where it says no more."""
        # Half a line is the last one of a process that ended, and a closed pipe is our own doing.
        with suppress(OSError, ValueError):
            return json.loads(self._started.answers.readline())
        return None

    def _why_gone(self) -> str:
        code = self._started.end(_ENDING_S)
        how = "" if code is None else f" with exit code {code}"
        if code is not None and code < 0:
            how = f", killed by {signal.Signals(-code).name}"
            how += " (it may be that memory ran out)" if code == -signal.SIGKILL else ""
        return (
            f"the process that samples ahead (engine.ahead) has ended{how}{self._last_words()}. A run that "
            "is saved goes on with --resume; without engine.ahead a run samples in its own process."
        )

    def _last_words(self) -> str:
        """The last line that it wrote as errors, after a colon."""
        with suppress(OSError, ValueError):
            if self._started.errors is not None:
                self._started.errors.seek(0)
                if lines := self._started.errors.read().decode("utf-8", "replace").strip().splitlines():
                    return f": {lines[-1]}"
        return ""


def _place_for(room: int) -> str | None:
    """Where weights cross in memory alone; None for the folder of temporary files."""
    if os.access(_MEMORY, os.W_OK) and free_bytes(_MEMORY) > room:
        return str(_MEMORY)
    return None


def fresh() -> Started:
    """One in an interpreter of its own, away from the terminal and its signals."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - whoever ends the process closes it
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        env=_environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def end(patience_s: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(patience_s)
        process.kill()
        process.wait()
        return None

    return Started(process.stdin, process.stdout, end, errors)


def _environment() -> dict[str, str]:
    """Ours, with this very Muster found first, and without a network: the run has loaded what is needed."""
    paths = [str(Path(muster.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}


_starters: list[Callable[[], Started]] = [fresh]


@contextmanager
def started_by(start: Callable[[], Started]) -> Generator[None]:
    """Inside, processes that sample are started so.

    For many small runs in one process, where starting Python and its libraries would take longer than
    the runs.
    """
    _starters.append(start)
    try:
        yield
    finally:
        _starters.pop()
