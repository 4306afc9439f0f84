"""A process that environments live in, started as `python -m muster.envs.worker`; nobody calls it by hand."""

import os
import socket

from muster.envs.hosting import Answer, Host, reason_of
from muster.envs.loading import Named, load
from muster.rewards.pool.channel import LINE_LOST, MAX_REPLY_BYTES
from muster.rewards.pool.wire import dumps, loads
from muster.rewards.pool.working import Home
from muster.rewards.worker import run_as


def work(line: socket.socket) -> None:
    """Obeys orders until the line is closed; the first one says which environment."""
    me = os.getpid()
    home = Home()
    hosts: list[Host] = []
    with line, line.makefile("rb") as incoming:
        for message in incoming:
            order = loads(message)
            answer = _loaded(hosts, order) if order["do"] == "load" else hosts[0].obey(order)
            if os.getpid() != me:
                # A child that the environment forked and that came back from it: not ours to answer.
                os._exit(1)
            try:
                line.sendall(_line(order["id"], answer))
            except OSError:
                os._exit(LINE_LOST)
            home.restore()


def _loaded(hosts: list[Host], order: dict[str, str]) -> Answer:
    """Makes the host of the environment that the order names."""
    try:
        hosts[:] = [Host(load(Named(order["spec"], order["digest"])), order["spec"])]
    except BaseException as error:
        return {"failure": reason_of(error)}
    return {}


def _line(number: int, answer: Answer) -> bytes:
    text = dumps({"id": number, **answer}).encode("utf-8") + b"\n"
    if len(text) < MAX_REPLY_BYTES:
        return text
    failure = f"gave more than {MAX_REPLY_BYTES >> 20} MB at once"
    return dumps({"id": number, "failure": failure}).encode("utf-8") + b"\n"


def main() -> None:
    """Is what the arguments say until the line is closed."""
    run_as(work)


if __name__ == "__main__":
    main()
