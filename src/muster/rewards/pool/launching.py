"""Starting and ending workers, three ways.

By a fork server in a fresh interpreter, by one that is forked from this process (for functions that no
name leads to), or each in an interpreter of its own (where nothing forks).
"""

import json
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from muster.rewards.pool.channel import Channel
from muster.rewards.pool.serving import serve
from muster.rewards.pool.trees import kill_tree
from muster.rewards.pool.working import forget_signals, silence, work
from muster.rewards.reward import Reward

CAN_FORK = hasattr(os, "fork") and hasattr(socket, "recv_fds")
REWARDS = "muster.rewards.worker"
"""What a worker of rewards runs."""

_SERVER_LIMIT_S = 60.0
"""A fork server answers within this time, or is taken for dead."""
_CLOSE_LIMIT_S = 10.0
_GONE = "the process that starts workers (`python -m muster...worker`) is gone, or could not be started"


class ServerGoneError(ConnectionError):
    """The fork server is not there any more, or can't fork."""


class Launched(NamedTuple):
    """A worker that runs."""

    pid: int
    channel: Channel


class Launcher(Protocol):
    """Starts workers and ends them with all that they started."""

    def start(self) -> Launched:
        """A new worker; ServerGoneError where there can't be one."""
        ...

    def end(self, pid: int, patience_s: float) -> int | None:
        """Ends a worker; its exit code, where it ended by itself within the patience."""
        ...

    def close(self) -> None:
        """Ends all workers and whatever started them."""
        ...


class Server(NamedTuple):
    """A fork server as its parent sees it."""

    control: socket.socket
    pid: int
    reap: Callable[[], object]
    """Waits for the server's end."""


class ForkServer:
    """Workers forked by a server, made on first use, and again where it is gone and can be remade."""

    def __init__(self, make: Callable[[], Server], *, can_remake: bool) -> None:
        self._make = make
        self._can_remake = can_remake
        self._server: Server | None = None if can_remake else make()
        self._is_closed = False

    def start(self) -> Launched:
        """A new worker."""
        try:
            return self._start()
        except ServerGoneError:
            if not self._can_remake:
                raise
            return self._start()

    def end(self, pid: int, patience_s: float) -> int | None:
        """Ends a worker; with the server gone, the system has ended it."""
        try:
            return self._ask({"do": "end", "pid": pid, "patience_s": patience_s}).get("status")
        except ServerGoneError:
            return None

    def close(self) -> None:
        """Ends the server, and with it its workers."""
        self._is_closed = True
        self._drop()

    def _start(self) -> Launched:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                answer = self._ask({"do": "start"}, theirs.fileno())
            except ServerGoneError:
                ours.close()
                raise
        if "pid" not in answer:
            ours.close()
            raise ServerGoneError(f"no process could be started for rewards: {answer.get('error')}")
        return Launched(answer["pid"], Channel(ours))

    def _ask(self, order: Mapping[str, object], *descriptors: int) -> dict[str, Any]:
        if self._server is None and self._can_remake and not self._is_closed:
            self._server = self._make()
        if self._server is None:
            raise ServerGoneError(_GONE)
        control = self._server.control
        try:
            socket.send_fds(control, [json.dumps(order).encode()], list(descriptors))
            if answer := control.recv(2**12):
                return json.loads(answer)
        except OSError:
            pass
        self._drop()
        raise ServerGoneError(_GONE)

    def _drop(self) -> None:
        """Lets the server end its workers and itself; kills it where that takes too long."""
        if self._server is None:
            return
        server, self._server = self._server, None
        with server.control as control, suppress(OSError):
            control.shutdown(socket.SHUT_WR)
            control.settimeout(_CLOSE_LIMIT_S)
            while control.recv(2**12):
                pass
        kill_tree(server.pid)
        server.reap()


class Interpreters:
    """Each worker in a fresh interpreter of its own: for systems that don't fork."""

    def __init__(self, module: str = REWARDS) -> None:
        self._module = module
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> Launched:
        """A new worker."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = _interpreter(self._module, "work", theirs)
        self._processes[process.pid] = process
        return Launched(process.pid, Channel(ours))

    def end(self, pid: int, patience_s: float) -> int | None:
        """Ends a worker with its descendants; its exit code, where it ended by itself."""
        process = self._processes.pop(pid)
        status = None
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(patience_s) if patience_s else None
        kill_tree(pid)
        process.kill()
        process.wait()
        return status

    def close(self) -> None:
        """Ends all workers."""
        for pid in list(self._processes):
            self.end(pid, 0.0)


def fresh_server(module: str = REWARDS) -> ForkServer:
    """A fork server in a fresh interpreter, small and without torch; `module` is what its workers run."""
    return ForkServer(lambda: _makers[-1](module), can_remake=True)


def forked_server(rewards: Sequence[Reward]) -> ForkServer:
    """A fork server forked from this process as it is now: it holds the rewards, and what they refer to."""
    known = {reward.name: reward for reward in rewards}
    return ForkServer(partial(_fork_server, known), can_remake=False)


def _spawn_server(module: str) -> Server:
    ours, theirs = socket.socketpair()
    ours.settimeout(_SERVER_LIMIT_S)
    with theirs:
        process = _interpreter(module, "serve", theirs)
    return Server(ours, process.pid, process.wait)


_makers: list[Callable[[str], Server]] = [_spawn_server]


@contextmanager
def servers_made_by(make: Callable[[str], Server]) -> Generator[None]:
    """Inside, fork servers of fresh workers are made so; `make` is given the module that these run.

    For many small runs in one process, where starting Python would take longer than the runs.
    """
    _makers.append(make)
    try:
        yield
    finally:
        _makers.pop()


def _interpreter(module: str, role: str, line: socket.socket) -> subprocess.Popen[bytes]:
    """A Python process with its end of the line; away from the terminal and its signals."""
    command = [sys.executable, "-P", "-m", module, role]
    path = json.dumps([entry or os.getcwd() for entry in sys.path])
    # Several workers that each take all cores would slow down each other and the run.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    if sys.platform == "win32":
        return _shared([*command, "-", path], line, environment)
    return subprocess.Popen(
        [*command, str(line.fileno()), path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[line.fileno()],
        start_new_session=True,
        env=environment,
    )


def _shared(
    command: Sequence[str], line: socket.socket, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """The same on Windows, where a socket is handed over as bytes and has to stay open until it is taken."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, env=environment)
    if process.stdin is not None and process.stdout is not None:
        with process.stdout as taken, process.stdin as handed:
            handed.write(line.share(process.pid))
            handed.close()
            taken.read(1)
    return process


def _fork_server(known: Mapping[str, Reward]) -> Server:
    ours, theirs = socket.socketpair()
    ours.settimeout(_SERVER_LIMIT_S)
    with theirs, warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads; the server uses nothing that a thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if pid == 0:
            ours.close()
            _become_server(theirs, known)
    return Server(ours, pid, partial(os.waitpid, pid, 0))


def _become_server(control: socket.socket, known: Mapping[str, Reward]) -> None:
    """Runs a fork server in this process, which ends with it: nothing above may go on twice."""
    try:
        os.setsid()
        silence()
        forget_signals()
        serve(control, partial(_work_forked, known))
    finally:
        os._exit(0)


def _work_forked(known: Mapping[str, Reward], line: socket.socket) -> None:
    work(line, known)
