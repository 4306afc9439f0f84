"""The fresh process that reads an export back, and a way to keep one for many exports."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import muster
from muster.errors import CheckpointError
from muster.export.held import Held, Reading

PATIENCE_S = 3600.0
"""How long reading back may take: a large model from a slow disk takes minutes."""


Reader = Callable[[Path, Held], Reading]
"""What reads an export back."""


def read_fresh(source: Path, held: Held) -> Reading:
    """What a process that knows nothing of the trained policy reads from the folder or file.

    Raises CheckpointError with the reason where it can't be read.
    """
    return _reading(source, held, _kept[-1].ask if _kept else _ask_once)


def read_alone(source: Path, held: Held) -> Reading:
    """The same by a process that is started for this and shared with nothing."""
    return _reading(source, held, _ask_once)


def _reading(source: Path, held: Held, ask: Callable[[str], str | None]) -> Reading:
    with tempfile.TemporaryDirectory(prefix="muster-export-") as scratch:
        # An adapter may name its base model by a path from here.
        places = {"source": str(source.absolute()), "scratch": scratch, "directory": os.getcwd()}
        request = json.dumps({**places, "held": asdict(held)})
        failure = ask(request)
        if failure is not None:
            raise CheckpointError(f"what was written can't be read back: {failure}. Nothing was published.")
        return Reading.load(Path(scratch))


def _ask_once(request: str) -> str | None:
    """Starts a process for one request; the reason where it failed."""
    try:
        done = subprocess.run(
            _command("main()"),
            input=request,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=_environment(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its process took longer than {PATIENCE_S:.0f} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"its process ended with {done.returncode}").rstrip(".")


def _command(call: str) -> list[str]:
    """Python without the working directory on its path: a file there never stands in for a library."""
    return [sys.executable, "-P", "-c", f"from muster.export.reading import main, serve; {call}"]


def _environment() -> dict[str, str]:
    """Ours, with this very Muster found first, and without a network: what is needed was loaded before."""
    paths = [str(Path(muster.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONIOENCODING": "utf-8",
        "HF_HUB_OFFLINE": "1",
    }


@contextlib.contextmanager
def shared_reader() -> Generator[None]:
    """Inside, one process reads all exports back, started at the first of them and ended after the last.

    For many small runs in one process, where starting Python and its libraries would take longer than
    the runs. Processes forked inside share it too. Unix only; elsewhere each export starts its own.
    """
    if not hasattr(socket, "AF_UNIX"):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        reader = _Kept(address=str(Path(folder) / "reader"))
        _kept.append(reader)
        try:
            yield
        finally:
            _kept.remove(reader)
            reader.close()


@dataclass(kw_only=True)
class _Kept:
    """A process that answers one request after the other at a Unix socket."""

    address: str
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    def ask(self, request: str) -> str | None:
        """The reason where the request can't be answered."""
        with self._connected() as connection, connection.makefile("rwb") as stream:
            stream.write(request.encode() + b"\n")
            stream.flush()
            answer = stream.readline()
        if not answer.endswith(b"\n"):
            return "its process ended"
        return answer.decode(errors="replace").strip().rstrip(".") or None

    def close(self) -> None:
        """Ends the process; one that was started in a fork ends when the fork does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _connected(self) -> socket.socket:
        with contextlib.suppress(OSError):
            return self._connect()
        Path(self.address).unlink(missing_ok=True)
        self._process = subprocess.Popen(
            _command(f"serve({self.address!r})"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )
        return self._once_listening(self._process)

    def _once_listening(self, process: "subprocess.Popen[bytes]") -> socket.socket:
        """Waits for the line that says that the process listens."""
        assert process.stdout is not None
        if process.stdout.readline():
            return self._connect()
        raise CheckpointError(
            "the process that reads exports back can't start; see `python -c 'import muster'`"
        )

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self.address)
        except OSError:
            connection.close()
            raise
        return connection


_kept: list[_Kept] = []
