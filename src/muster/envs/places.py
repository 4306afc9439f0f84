"""A process that environments live in, from the run's side: its line, what it is asked, what it knows."""

import secrets
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from muster.envs.hosting import Answer
from muster.envs.stage import Order
from muster.rewards.pool.channel import Channel, ChannelClosedError
from muster.rewards.pool.launching import Launcher
from muster.rewards.pool.wire import dumps, loads

_NOT_ITS_OWN = "wrote to the line what is not its own"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """An order on its way."""

    order: Order
    expected: Answer | None = None
    """What it was answered before, where it is asked again in a new process; None for a first time."""


@dataclass(eq=False, kw_only=True)
class Place:
    """One process, or the room for it."""

    pid: int = 0
    channel: Channel | None = None
    """None where no process is there."""
    known: set[int] = field(default_factory=set)
    """Episodes whose environments are in it."""
    waiting: deque[Ask] = field(default_factory=deque)
    asked: Ask | None = None
    """Under way; None while it loads, or has nothing to do."""
    number: int | None = None
    """Drawn, so that nothing else on the line is taken for the answer; None: nothing is awaited."""
    deadline: float = inf

    def transmit(self, message: Mapping[str, object], limit_s: float) -> None:
        """Sends what is to be answered within so many seconds; UnsendableError where it can't be sent."""
        number = secrets.randbits(62)
        line = dumps({"id": number, **message})
        self.number, self.deadline = number, time.monotonic() + limit_s
        # A line that is closed shows itself when it is read, with the reason.
        with suppress(ChannelClosedError):
            self._line.send(line)

    def flush(self) -> None:
        """Sends what has waited for room."""
        with suppress(ChannelClosedError):
            self._line.flush()

    def receive(self) -> Answer | None:
        """The answer, where it has come; ChannelClosedError says why there will be none."""
        lines = self._line.lines()
        if not lines:
            return None
        try:
            [line] = lines
            answer = loads(line)
            is_ours = answer.pop("id") == self.number
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ChannelClosedError(_NOT_ITS_OWN) from error
        if not is_ours:
            raise ChannelClosedError(_NOT_ITS_OWN)
        self.number, self.deadline = None, inf
        return answer

    def end(self, launcher: Launcher) -> None:
        """Ends the process, and forgets what was in it."""
        if self.channel is not None:
            self.channel.close()
            launcher.end(self.pid, 0.0)
        self.channel, self.asked, self.number, self.deadline = None, None, None, inf
        self.known.clear()

    @property
    def _line(self) -> Channel:
        if self.channel is None:
            raise AssertionError("there is no process to talk to")
        return self.channel
