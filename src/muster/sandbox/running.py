"""Runs one program behind the walls and gives what it wrote, within the limits."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from muster.sandbox.limits import Limits, num_tasks_of_user
from muster.sandbox.walls import Isolation

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}
"""All that a program finds in its environment."""

Ending = Literal["exit", "time", "output"]
"""It ended by itself (or by a signal of the system), took too long, or wrote too much."""

_CHUNK = 65536
_GLANCE_S = 0.05
_GRACE_S = 6.0
# -I and -S: no variables, no user folder, no installed packages; -B: no files of its own.
_PYTHON = ("-I", "-S", "-B")
HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")
"""A program that calls the functions of `solution.py`; see there."""
_LAUNCHER = Path(__file__).with_name("launcher.py").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a program ended and what it wrote."""

    ending: Ending
    code: int
    """Exit code; 128 and more, or below 0, where a signal ended it."""
    stdout: str
    """Standard output as UTF-8, cut at the limit; what isn't UTF-8 becomes U+FFFD."""
    seconds: float
    """On the clock, its start included."""

    @property
    def is_success(self) -> bool:
        """It ended by itself, with exit code 0."""
        return self.ending == "exit" and self.code == 0


def run_program(
    files: Mapping[str, str],
    *,
    isolation: Isolation,
    arguments: Sequence[str] = ("program.py",),
    stdin: str | None = None,
    limits: Limits | None = None,
) -> Outcome:
    """Runs Python on the first argument, a name in `files`, with only these files in reach.

    Without `stdin` the program reads end-of-file. Its error output goes nowhere.
    """
    bounds = limits or Limits()
    user = isolation.new_user()
    with _folder(files, user) as folder, _input(stdin, user) as source, _lifeline() as lifeline:
        order = {
            "command": [
                isolation.python,
                *_PYTHON,
                f"{isolation.program_folder(folder)}/{arguments[0]}",
                *arguments[1:],
            ],
            "folder": isolation.work_folder(folder),
            "limits": bounds.for_system(num_tasks_of_user() if isolation.counts_others else 0),
            "uid": user,
            "supervises": isolation.bubblewrap is None,
        }
        launcher = [isolation.python, *_PYTHON, "-c", _LAUNCHER, json.dumps(order)]
        process = subprocess.Popen(
            isolation.wrapped(launcher, folder, bounds.disk_bytes, lifeline.far),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            cwd=folder,
            start_new_session=True,
            pass_fds=[lifeline.far] if isolation.bubblewrap else [],
        )
        lifeline.let_go()
        return _followed(process, bounds, lifeline)


def _followed(process: subprocess.Popen[bytes], limits: Limits, lifeline: "_Lifeline") -> Outcome:
    """What the process wrote until it ended or was ended; nothing of it stays alive."""
    start = time.monotonic()
    assert process.stdout is not None
    with process.stdout as pipe:
        try:
            ending, written = _read(process, pipe, start + limits.wall_s, limits.output_bytes)
        finally:
            _end(process)
            lifeline.wait(_GRACE_S)
    return Outcome(
        ending=ending,
        code=process.returncode,
        stdout=written.decode("utf-8", "replace"),
        seconds=time.monotonic() - start,
    )


def _read(
    process: subprocess.Popen[bytes], pipe: IO[bytes], deadline: float, max_bytes: int
) -> tuple[Ending, bytes]:
    """How the program ended, and its output."""
    os.set_blocking(pipe.fileno(), False)
    written = bytearray()
    is_open = True
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            # Asked before reading: what was written by then is in the pipe.
            has_ended = process.poll() is not None
            if is_open:
                is_open = _take(pipe, written, max_bytes)
            if len(written) > max_bytes:
                return "output", bytes(written[:max_bytes])
            if has_ended:
                return "exit", bytes(written)
            if (left := deadline - time.monotonic()) <= 0:
                return "time", bytes(written)
            if is_open:
                selector.select(min(left, _GLANCE_S))
            else:
                _wait(process, min(left, _GLANCE_S))


def _take(pipe: IO[bytes], written: bytearray, max_bytes: int) -> bool:
    """Adds what is in the pipe, up to a little more than allowed; False once it is closed."""
    with contextlib.suppress(BlockingIOError):
        while len(written) <= max_bytes:
            chunk = os.read(pipe.fileno(), _CHUNK)
            if not chunk:
                return False
            written += chunk
    return True


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and everything that it started; asks first, since the launcher knows them all."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        _wait(process, _GRACE_S)
    # The group can outlive its leader.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Lifeline:
    """A pipe whose far end is held open by whoever must be gone before we go on."""

    def __init__(self) -> None:
        self.near, self.far = os.pipe()
        self._is_held = True

    def let_go(self) -> None:
        """Closes our copy of the far end."""
        if self._is_held:
            os.close(self.far)
            self._is_held = False

    def wait(self, seconds: float) -> None:
        """Returns once nobody holds the far end, or after so many seconds."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.near, selectors.EVENT_READ)
            selector.select(seconds)


@contextmanager
def _lifeline() -> Generator[_Lifeline]:
    line = _Lifeline()
    try:
        yield line
    finally:
        line.let_go()
        os.close(line.near)


@contextmanager
def _folder(files: Mapping[str, str], user: int | None) -> Generator[Path]:
    """A new folder with the files in `program`, and `work` to write in; removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="muster-program-"))
    try:
        program, work = folder / "program", folder / "work"
        program.mkdir()
        work.mkdir()
        for name, text in files.items():
            (program / name).write_text(text, encoding="utf-8", errors="surrogatepass")
        if user is not None:
            folder.chmod(0o711)
            os.chown(work, user, user)
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Removes the folder, however deep what was made in it: `rm` does not recurse on a stack."""
    subprocess.run(
        ["rm", "-rf", "--", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


@contextmanager
def _input(text: str | None, user: int | None) -> Generator[IO[bytes] | int]:
    """What the program reads: a file with the text, or nothing."""
    if text is None:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.seek(0)
        if user is not None:
            # /dev/stdin opens the file anew, as the program's user.
            os.fchown(file.fileno(), user, user)
        yield file
