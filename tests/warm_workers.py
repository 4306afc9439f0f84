"""A small interpreter that forks the processes in which rewards and environments of tests are started.

Starting Python for each of hundreds of small runs would take longer than the runs. What is forked has
imported what a worker of its own would have imported, and nothing else; directory, environment and path are
those of whoever asks. It listens on a socket with a name, so that forks of the tests can ask, too.
"""

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from muster.rewards.pool.launching import Server


@contextmanager
def nursery() -> Generator[Path]:
    """The address that such an interpreter listens on, for as long as this lasts."""
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder) / "nursery"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(address))
            listening.listen(64)
            process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(listening.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )
        assert process.stdin is not None
        yield address
        process.stdin.close()
        process.wait()


def server_of(address: Path, module: str) -> Server:
    """A fork server of this module's workers."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60.0)
    with theirs:
        pid = ask(address, module, theirs)
    return Server(ours, pid, partial(wait_for_end, pid))


def ask(address: Path, module: str, line: socket.socket) -> int:
    """The number of a process that is a fork server of this module's workers, with its end of the line."""
    order = {
        "module": module,
        "path": [entry or os.getcwd() for entry in sys.path],
        "directory": os.getcwd(),
        "environment": {"OMP_NUM_THREADS": "1", **os.environ},
    }
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(address))
        socket.send_fds(asking, [b"."], [line.fileno()])
        asking.sendall(json.dumps(order).encode() + b"\n")
        return int(asking.makefile().readline())


def wait_for_end(pid: int) -> None:
    """Waits for the end of a process that is not ours."""
    with suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            time.sleep(0.001)


def main() -> None:
    """Forks until nobody may ask any more."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    for module in ("muster.rewards.worker", "muster.envs.worker", "muster.rewards.pool.serving"):
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while listening in select.select([listening, sys.stdin], [], [])[0]:
        asked, _ = listening.accept()
        with asked:
            _, [line], _, _ = socket.recv_fds(asked, 1, 1)
            order = json.loads(asked.makefile().readline())
            if (pid := os.fork()) == 0:
                listening.close()
                asked.close()
                _become(line, **order)
            os.close(line)
            asked.sendall(f"{pid}\n".encode())


def _become(line: int, module: str, path: list[str], directory: str, environment: dict[str, str]) -> NoReturn:
    """What `python -m module serve` is."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [module, "serve", str(line), json.dumps(path)]
        importlib.import_module(module).main()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
