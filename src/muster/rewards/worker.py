"""A fresh interpreter for rewards, started as `python -m muster.rewards.worker`; nobody calls it by hand.

The arguments: what to be (a fork server, or one worker), the descriptor of the line, and the path on
which modules are found, as JSON.
"""

import json
import os
import socket
import sys
from collections.abc import Callable

from muster.rewards.pool.working import silence, work


def run_as(work: Callable[[socket.socket], None]) -> None:
    """Is what the arguments say until the line is closed: a fork server of workers, or one worker."""
    role, descriptor, path = sys.argv[1:]
    sys.argv[1:] = []
    sys.path[:] = json.loads(path)
    line = _line(descriptor)
    silence()
    if role == "work":
        work(line)
        return
    # The fork server is for systems that fork; a worker alone doesn't need what it imports.
    from muster.rewards.pool.serving import serve

    serve(line, work)


def _line(descriptor: str) -> socket.socket:
    """The socket that was handed over: by its number, or on Windows as bytes on standard input."""
    if descriptor != "-":
        return socket.socket(fileno=int(descriptor))
    taken = socket.fromshare(sys.stdin.buffer.read())
    os.write(1, b"1")
    return taken


def main() -> None:
    """Is what the arguments say, for rewards."""
    run_as(lambda line: work(line, {}))


if __name__ == "__main__":
    main()
