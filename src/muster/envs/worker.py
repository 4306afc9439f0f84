"""A process that environments live in, started as `python -m muster.envs.worker`; nobody calls it by hand."""

import socket
from typing import Any

from muster.envs.hosting import Answer, Host
from muster.envs.loading import Named, load
from muster.rewards.calling import reason_of
from muster.rewards.pool.channel import MAX_REPLY_BYTES
from muster.rewards.pool.wire import dumps
from muster.rewards.pool.working import obey
from muster.rewards.worker import run_as


def work(line: socket.socket) -> None:
    """Obeys orders until the line is closed; the first one says which environment."""
    hosts: list[Host] = []

    def answer(order: dict[str, Any]) -> str:
        given = _loaded(hosts, order) if order["do"] == "load" else hosts[0].obey(order)
        return _line(order["id"], given)

    obey(line, answer)


def _loaded(hosts: list[Host], order: dict[str, Any]) -> Answer:
    """Makes the host of the environment that the order names."""
    try:
        hosts[:] = [Host(load(Named(order["spec"], order["digest"])), order["spec"])]
    except BaseException as error:
        return {"failure": reason_of(error)}
    return {}


def _line(number: int, answer: Answer) -> str:
    text = dumps({"id": number, **answer})
    if len(text) < MAX_REPLY_BYTES:
        return text
    return dumps({"id": number, "failure": f"gave more than {MAX_REPLY_BYTES >> 20} MB at once"})


def main() -> None:
    """Is what the arguments say until the line is closed."""
    run_as(work)


if __name__ == "__main__":
    main()
