"""What a worker does: reads calls from its line, runs the reward, answers; until the line is closed.

What a user wrote shares the process with this loop and may do to it what it likes: what it leaves behind is
put back after each call where the next one would meet it, and the run's process watches the clock.
"""

import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from muster.records import GradingRequest
from muster.rewards.calling import Failure, Logged, Surroundings, TrainerState, Verdict, verdicts
from muster.rewards.loading import load_named
from muster.rewards.pool.channel import LINE_LOST, MAX_REPLY_BYTES
from muster.rewards.pool.wire import as_request, dumps, loads, sendable
from muster.rewards.reward import Origin, Reward


def work(line: socket.socket, rewards: Mapping[str, Reward]) -> None:
    """Answers calls until the line is closed; `rewards` are those that were there before the fork."""
    known = dict(rewards)
    obey(line, lambda message: _answer(message, known))


def obey(line: socket.socket, answer: Callable[[dict[str, Any]], str]) -> None:
    """Answers each message until the line is closed, by what runs code of a user."""
    me = os.getpid()
    home = Home()
    with line, line.makefile("rb") as incoming:
        for message in incoming:
            text = answer(loads(message))
            if os.getpid() != me:
                # A child that the code forked and that came back from it: not ours to answer.
                os._exit(1)
            try:
                line.sendall(text.encode("utf-8") + b"\n")
            except OSError:
                os._exit(LINE_LOST)
            home.restore()


def silence() -> None:
    """Nothing that rewards read or print reaches the terminal, a log, or whatever else the run has open."""
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for descriptor in range(3):
            os.dup2(nothing.fileno(), descriptor)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def forget_signals() -> None:
    """Gives every signal its default meaning: handlers of the run are for the run."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Home:
    """Directory and environment as they were, for the next call to find."""

    def __init__(self) -> None:
        self._directory = os.getcwd()
        self._environment = dict(os.environ)

    def restore(self) -> None:
        """Undoes what a call changed; an alarm that it set rings for nobody else."""
        with suppress(OSError):
            os.chdir(self._directory)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(message: Mapping[str, Any], known: dict[str, Reward]) -> str:
    """The answer to a message, as JSON."""
    name = message["reward"]
    try:
        if message["do"] == "load":
            if name not in known:
                known[name] = load_named(name, Origin(**message["origin"]))
            return dumps({"id": message["id"]})
        return _called(message, known[name])
    except BaseException as error:
        # Ctrl-C, SystemExit at import, want of memory: here they are all the reward's own.
        return dumps({"id": message["id"], "failure": f"raised {type(error).__name__}: {error}"[:400]})


def _called(message: Mapping[str, Any], reward: Reward) -> str:
    requests = [as_request(read) for read in message["requests"]]
    logged = Logged()
    state = TrainerState(global_step=message["step"], max_steps=message["num_steps"])
    around = Surroundings(state=state, logged=logged, limit_s=message["limit_s"])
    _seed(reward, requests, message["step"])
    given = verdicts(reward, requests, around)
    extras = {column: [sendable(value) for value in values] for column, values in logged.extras.items()}
    answer = {
        "id": message["id"],
        "verdicts": [_plain(verdict) for verdict in given],
        "metrics": logged.metrics,
        "extras": extras,
    }
    line = dumps(answer)
    if len(line) < MAX_REPLY_BYTES:
        return line
    reason = f"noted more than {MAX_REPLY_BYTES >> 20} MB through log_extra or log_metric"
    return dumps({"id": message["id"], "failure": reason})


def _plain(verdict: Verdict) -> object:
    return {"failure": verdict.reason} if isinstance(verdict, Failure) else verdict


def _seed(reward: Reward, requests: Sequence[GradingRequest], step: int) -> None:
    """Seeds what draws from global generators by what is graded.

    A reward that draws gives the same whatever ran before it in this worker, and whichever worker it is.
    """
    digest = blake2b(f"{reward.name}\0{step}".encode(), digest_size=8)
    for request in requests[:1]:
        digest.update(f"\0{request.sample.id}\0{request.text}".encode("utf-8", "surrogatepass"))
    seed_generators(digest.digest())


def seed_generators(digest: bytes) -> None:
    """Seeds the generators that a process has one of each."""
    seed = int.from_bytes(digest, "big")
    random.seed(seed)
    # numpy is seeded where it is loaded; it isn't worth its import where it is not.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed % 2**32)
