"""Environments in processes that can be ended: one that hangs or crashes costs its rollout, no more.

An episode lives in one process from its reset to its reward. Where a process has to be ended, the other
episodes in it begin again in a new one: what they were asked is asked again, and the answers have to be
those of before.
"""

import os
import selectors
import threading
import time
import weakref
from collections.abc import Sequence

from muster.envs.hosting import Answer
from muster.envs.loading import named
from muster.envs.places import Ask, Place
from muster.envs.stage import Failed, Order, read_answer, read_description
from muster.rewards.pool.channel import ChannelClosedError
from muster.rewards.pool.grader import DEFAULT_LIMIT_S, default_workers
from muster.rewards.pool.launching import CAN_FORK, Interpreters, Launcher, ServerGoneError, fresh_server
from muster.rewards.pool.wire import UnsendableError

WORKER = "muster.envs.worker"
LOAD_LIMIT_S = 120.0
"""Seconds in which a process starts and loads the environment, imports included."""


OTHERWISE = "did not repeat itself after its process had to be ended for another's"
"""Why an episode fails that can't begin again."""


class StagePool:
    """Environments in worker processes, each call under a limit on the clock."""

    def __init__(
        self, spec: str, *, workers: int | None = None, time_limit_s: float = DEFAULT_LIMIT_S
    ) -> None:
        """Starts a process to hear what the environment is; ConfigError where it can't be used."""
        self.spec = spec
        self.time_limit_s = time_limit_s
        self.name = named(spec)
        self.launcher: Launcher = fresh_server(WORKER) if CAN_FORK else Interpreters(WORKER)
        self.places = [Place() for _ in range(workers or default_workers())]
        self.past: dict[int, list[tuple[Order, Answer]]] = {}
        """What the episodes under way were asked, and what they answered."""
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _close, self.launcher, self.places, os.getpid())
        try:
            [description] = _Round(self).work([Order(0, "describe")])
            self.described = read_description(description, spec)
        except BaseException:
            self._end()
            raise

    def ask(self, orders: Sequence[Order]) -> list[Answer | Failed]:
        """The answers, in order."""
        with self._lock:
            return _Round(self).work(orders)

    def describe(self) -> str:
        """One line: where the environment runs, and its limits."""
        limits = self.described.limits
        tokens = "" if limits.max_turn_tokens is None else f" of at most {limits.max_turn_tokens} tokens"
        names = ", ".join(str(one["function"]["name"]) for one in self.described.tools)
        return (
            f"environment {self.spec}: up to {limits.max_turns} turns{tokens}"
            f"{f', with the tools {names}' if names else ''}; in up to {len(self.places)} processes, "
            f"{self.time_limit_s:g} s a call"
        )

    def close(self) -> None:
        """Ends all processes that environments run in, with whatever they started."""
        with self._lock:
            self._end()


def _close(launcher: Launcher, places: Sequence[Place], owner: int) -> None:
    """Closes the lines and ends the processes; not in a forked copy of their process."""
    if os.getpid() != owner:
        return
    for place in places:
        if place.channel is not None:
            place.channel.close()
    launcher.close()


class _Round:
    """Some orders, from their first to their last answer; one thread waits for all processes."""

    def __init__(self, pool: StagePool) -> None:
        self.pool = pool
        self.answers: dict[int, Answer | Failed] = {}
        self.selector = selectors.DefaultSelector()

    def work(self, orders: Sequence[Order]) -> list[Answer | Failed]:
        """The answers to the orders, in their order."""
        places = self.pool.places
        for order in orders:
            places[order.episode % len(places)].waiting.append(Ask(order=order))
        with self.selector:
            for place in places:
                if place.channel is not None:
                    self.selector.register(place.channel, selectors.EVENT_READ, place)
            try:
                while any(place.waiting or place.number is not None for place in places):
                    for place in places:
                        self._go_on(place)
                    self._listen()
            finally:
                # Only where an error or Ctrl-C cut the round short.
                for place in places:
                    place.waiting.clear()
                    if place.number is not None:
                        self._end(place)
        return [self.answers[order.episode] for order in orders]

    def _go_on(self, place: Place) -> None:
        """Gives an idle process its next order, or starts the process."""
        while place.waiting and place.number is None:
            order = place.waiting[0].order
            if order.do == "forget" and order.episode not in place.known:
                self.answers[order.episode] = {}
            if order.episode in self.answers:
                place.waiting.popleft()
            elif place.channel is None:
                self._start(place)
            elif order.do in ("step", "reward") and order.episode not in place.known:
                self._ask_again(place, order.episode)
            else:
                self._send(place, place.waiting.popleft())

    def _ask_again(self, place: Place, episode: int) -> None:
        """Puts what the episode was asked in a process that is gone in front of what it is to be asked."""
        again = [Ask(order=order, expected=answer) for order, answer in self.pool.past.get(episode, [])]
        if not again:
            self._fail(episode, "is asked about an episode that was never reset")
        place.waiting.extendleft(reversed(again))
        place.known.add(episode)

    def _start(self, place: Place) -> None:
        """Starts a process and has it load the environment."""
        try:
            place.pid, place.channel = self.pool.launcher.start()
        except ServerGoneError as error:
            self._not_loaded(place, str(error))
            return
        self.selector.register(place.channel, selectors.EVENT_READ, place)
        spec, digest = self.pool.name
        place.transmit({"do": "load", "spec": spec, "digest": digest}, LOAD_LIMIT_S)
        self._watch(place)

    def _send(self, place: Place, ask: Ask) -> None:
        try:
            place.transmit(ask.order.plain, self.pool.time_limit_s)
        except (UnsendableError, ValueError, RecursionError) as error:
            self._fail(ask.order.episode, f"was not asked: its row holds {error}")
            return
        place.asked = ask
        if ask.order.do == "reset" and ask.expected is None:
            place.known.add(ask.order.episode)
            self.pool.past.pop(ask.order.episode, None)
        self._watch(place)

    def _watch(self, place: Place) -> None:
        assert place.channel is not None
        writes = selectors.EVENT_WRITE if place.channel.has_unsent else 0
        self.selector.modify(place.channel, selectors.EVENT_READ | writes, place)

    def _listen(self) -> None:
        """Waits for answers, at most until the next limit is reached; ends who has reached it."""
        awaited = [place for place in self.pool.places if place.number is not None]
        if not awaited:
            return
        earliest = min(place.deadline for place in awaited)
        for key, events in self.selector.select(max(0.0, earliest - time.monotonic())):
            place: Place = key.data
            if events & selectors.EVENT_WRITE:
                place.flush()
                self._watch(place)
            if events & selectors.EVENT_READ:
                self._read(place)
        now = time.monotonic()
        for place in awaited:
            if place.number is not None and place.deadline <= now:
                limit_s = LOAD_LIMIT_S if place.asked is None else self.pool.time_limit_s
                self._lose(place, f"timed out after {limit_s:g} s")

    def _read(self, place: Place) -> None:
        try:
            answer = place.receive()
        except ChannelClosedError as error:
            self._lose(place, "ended its process" if str(error) == "closed" else str(error))
            return
        ask = place.asked
        if answer is not None and ask is not None:
            place.asked = None
            self._heard(place, ask, answer)
        elif answer is not None and "failure" in answer:
            self._end(place)
            self._not_loaded(place, str(answer["failure"]))

    def _heard(self, place: Place, ask: Ask, answer: Answer) -> None:
        order = ask.order
        if ask.expected is not None:
            if answer != ask.expected:
                self._fail(order.episode, OTHERWISE)
            return
        read = self.answers[order.episode] = read_answer(answer)
        if isinstance(read, Failed) or order.do in ("reward", "forget"):
            place.known.discard(order.episode)
            self.pool.past.pop(order.episode, None)
        elif order.do in ("reset", "step"):
            self.pool.past.setdefault(order.episode, []).append((order, answer))

    def _lose(self, place: Place, why: str) -> None:
        """The process is ended: who it was busy with is to blame, the others begin again elsewhere."""
        ask, was_idle = place.asked, place.number is None
        self._end(place)
        if ask is not None:
            self._fail(ask.order.episode, why)
        elif not was_idle:
            self._not_loaded(place, why)

    def _not_loaded(self, place: Place, why: str) -> None:
        """Whoever waits for an environment that can't be loaded has failed."""
        while place.waiting:
            self._fail(place.waiting.popleft().order.episode, f"can't be loaded: it {why}")

    def _end(self, place: Place) -> None:
        if place.channel is not None:
            self.selector.unregister(place.channel)
        place.end(self.pool.launcher)

    def _fail(self, episode: int, why: str) -> None:
        self.answers[episode] = Failed(why)
        self.pool.past.pop(episode, None)
