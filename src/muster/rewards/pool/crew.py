"""Tasks over workers: each worker has one task at a time and a limit on the clock; who misses it is replaced.

One thread waits for all of them, the one that called; so limits need no signal and hold in any thread.
"""

import json
import secrets
import selectors
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from muster.rewards.calling import Failure, Verdict, timed_out, whole_batch
from muster.rewards.pool.channel import LINE_LOST, Channel, ChannelClosedError
from muster.rewards.pool.launching import Launcher, ServerGoneError
from muster.rewards.pool.wire import dumps, loads
from muster.rewards.reward import Reward

LOAD_LIMIT_S = 120.0
"""Seconds in which a worker starts and loads a reward, imports included."""
_SLACK_S = 2.0
"""What a worker that keeps a limit by itself may take beyond it."""
_PATIENCE_S = 0.5
"""How long a worker whose line is closed may take to end by itself: it has an exit code then."""

Stage = Literal["load", "call"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One call of a reward: on one completion, or on several."""

    reward: Reward
    slots: tuple[int, ...]
    """Which completions, by their number in what is graded."""
    requests: tuple[str, ...]
    """The same as JSON."""

    @property
    def keeps_limit(self) -> bool:
        """Awaits several calls at once, each under the limit; the worker itself watches over that."""
        return self.reward.is_async and self.reward.convention != "batch" and len(self.slots) > 1

    def split(self) -> list["Task"]:
        """The same work, a completion at a time."""
        return [
            Task(reward=self.reward, slots=(slot,), requests=(request,))
            for slot, request in zip(self.slots, self.requests, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a task."""

    task: Task
    verdicts: Sequence[Verdict]
    metrics: Mapping[str, list[float]] = field(default_factory=dict)
    extras: Mapping[str, list[object]] = field(default_factory=dict)
    problem: str | None = None
    """Why there is no verdict on any of it."""
    seconds: float = 0.0
    """What the call took; 0 where the reward was not called."""


@dataclass(frozen=True, kw_only=True)
class Occasion:
    """What all tasks of one grading share."""

    step: int
    num_steps: int


@dataclass(eq=False)
class Worker:
    """A process that grades."""

    pid: int
    channel: Channel
    loaded: set[str] = field(default_factory=set)
    """Names of the rewards that it can call."""


@dataclass(kw_only=True)
class _Job:
    """A task in a worker's hands."""

    task: Task
    number: int
    """Drawn, so that what else a reward writes to the line is not taken for the answer."""
    stage: Stage = "load"
    limit_s: float = inf
    began: float = 0.0
    deadline: float = inf

    @property
    def seconds(self) -> float:
        """Since the call began; loading the reward is no part of a call."""
        return time.monotonic() - self.began if self.stage == "call" else 0.0


class Crew:
    """Workers of one kind; they stay for the next grading, until one fails or the crew is closed."""

    def __init__(self, launcher: Launcher, size: int, limit_s: float) -> None:
        self.launcher = launcher
        self.size = size
        self.limit_s = limit_s
        self.workers: list[Worker] = []

    def run(self, tasks: Sequence[Task], occasion: Occasion) -> list[Outcome]:
        """What came of each task, in no order."""
        return _Shift(self, tasks, occasion).work()

    def free(self, busy: Mapping[Worker, object]) -> Worker | None:
        """A worker without a task: an idle one, or a new one while there is room for it."""
        for worker in [worker for worker in self.workers if worker not in busy]:
            if worker.channel.is_quiet():
                return worker
            self.dismiss(worker)
        if len(self.workers) >= self.size:
            return None
        pid, channel = self.launcher.start()
        self.workers.append(Worker(pid, channel))
        return self.workers[-1]

    def dismiss(self, worker: Worker, patience_s: float = 0.0) -> int | None:
        """Ends the worker; its exit code, where it ended by itself within the patience."""
        self.workers.remove(worker)
        worker.channel.close()
        return self.launcher.end(worker.pid, patience_s)

    def close(self) -> None:
        """Ends all workers and whatever starts them."""
        for worker in self.workers:
            worker.channel.close()
        self.workers.clear()
        self.launcher.close()


class _Shift:
    """One grading: tasks that wait, tasks under way, outcomes."""

    def __init__(self, crew: Crew, tasks: Sequence[Task], occasion: Occasion) -> None:
        self.crew = crew
        self.occasion = occasion
        self.waiting = deque(tasks)
        self.busy: dict[Worker, _Job] = {}
        self.outcomes: list[Outcome] = []
        self.selector = selectors.DefaultSelector()

    def work(self) -> list[Outcome]:
        with self.selector:
            try:
                while self.waiting or self.busy:
                    self._hand_out()
                    self._listen()
                    self._end_overdue()
            finally:
                # Only where an error or Ctrl-C cut the shift short.
                for worker in list(self.busy):
                    self.crew.dismiss(worker)
        return self.outcomes

    def _hand_out(self) -> None:
        """Gives a task to every worker that is free."""
        while self.waiting:
            try:
                worker = self.crew.free(self.busy)
            except ServerGoneError as error:
                self._give_up(str(error))
                return
            if worker is None:
                return
            task = self.waiting.popleft()
            self.busy[worker] = job = _Job(task=task, number=secrets.randbits(62))
            self.selector.register(worker.channel, selectors.EVENT_READ, worker)
            self._begin(worker, job, "call" if task.reward.name in worker.loaded else "load")

    def _give_up(self, reason: str) -> None:
        """Fails what waits; what is under way may still come to its end."""
        while self.waiting:
            self._fail(self.waiting.popleft(), Failure(reason))

    def _begin(self, worker: Worker, job: _Job, stage: Stage) -> None:
        """Has the worker load the reward, or call it; the clock starts."""
        limit_s = self.crew.limit_s
        job.stage = stage
        job.limit_s = max(LOAD_LIMIT_S, limit_s) if stage == "load" else limit_s
        slack_s = _SLACK_S if job.task.keeps_limit else 0.0
        job.began = time.monotonic()
        job.deadline = job.began + job.limit_s + slack_s
        self._send(worker, _load(job) if stage == "load" else _call(job, self.occasion))

    def _send(self, worker: Worker, line: str) -> None:
        # A line that is closed shows itself when it is read, with the reason.
        with suppress(ChannelClosedError):
            worker.channel.send(line)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.channel.has_unsent else 0)
        self.selector.modify(worker.channel, events, worker)

    def _listen(self) -> None:
        """Waits for answers, at most until the next limit is reached."""
        if not self.busy:
            return
        earliest = min(job.deadline for job in self.busy.values())
        for key, events in self.selector.select(max(0.0, earliest - time.monotonic())):
            worker: Worker = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(worker)
            if events & selectors.EVENT_READ:
                self._read(worker)

    def _flush(self, worker: Worker) -> None:
        with suppress(ChannelClosedError):
            worker.channel.flush()
        if not worker.channel.has_unsent:
            self.selector.modify(worker.channel, selectors.EVENT_READ, worker)

    def _read(self, worker: Worker) -> None:
        job = self.busy[worker]
        try:
            first, *more = worker.channel.lines() or [None]
            if first is not None:
                self._heard(worker, job, first)
            if more and worker not in self.busy:
                self.crew.dismiss(worker)
        except ChannelClosedError as error:
            self._release(worker)
            status = self.crew.dismiss(worker, _PATIENCE_S)
            self._blame(job, _how_it_ended(str(error), status))

    def _heard(self, worker: Worker, job: _Job, line: bytes) -> None:
        try:
            answer = loads(line)
            is_ours = answer["id"] == job.number
        except (ValueError, TypeError, KeyError):
            is_ours = False
            answer = {}
        if not is_ours:
            raise ChannelClosedError("wrote to the line what is not its own")
        if job.stage == "load" and "failure" not in answer:
            worker.loaded.add(job.task.reward.name)
            self._begin(worker, job, "call")
            return
        self._release(worker)
        if "failure" not in answer:
            self.outcomes.append(_outcome(job, answer))
        elif job.stage == "load":
            self._fail_all_of(job.task, Failure(f"can't be loaded in a worker: {answer['failure']}"))
        else:
            self._fail(job.task, Failure(answer["failure"]), job.seconds)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for worker, job in list(self.busy.items()):
            if job.deadline <= now:
                self._release(worker)
                self.crew.dismiss(worker)
                self._blame(job, timed_out(job.limit_s))

    def _blame(self, job: _Job, failure: Failure) -> None:
        """Says of a task that its worker failed, or has the task done in pieces."""
        if job.stage == "load":
            self._fail_all_of(job.task, Failure(f"can't be loaded in a worker: {failure.reason}"))
        elif job.task.keeps_limit:
            # Which of its calls is to blame can't be told from here.
            self.waiting.extendleft(reversed(job.task.split()))
        else:
            self._fail(job.task, failure, job.seconds)

    def _release(self, worker: Worker) -> None:
        del self.busy[worker]
        self.selector.unregister(worker.channel)

    def _fail(self, task: Task, failure: Failure, seconds: float = 0.0) -> None:
        size = len(task.slots)
        verdicts = whole_batch(failure, size) if task.reward.convention == "batch" else [failure] * size
        self.outcomes.append(Outcome(task=task, verdicts=verdicts, problem=failure.reason, seconds=seconds))

    def _fail_all_of(self, task: Task, failure: Failure) -> None:
        """A reward that can't be loaded once is not tried a hundred times."""
        name = task.reward.name
        same = [task, *(other for other in self.waiting if other.reward.name == name)]
        self.waiting = deque(other for other in self.waiting if other.reward.name != name)
        for each in same:
            self._fail(each, failure)


def _call(job: _Job, occasion: Occasion) -> str:
    head = json.dumps(
        {
            "do": "call",
            "id": job.number,
            "reward": job.task.reward.name,
            "step": occasion.step,
            "num_steps": occasion.num_steps,
            "limit_s": job.limit_s if job.task.keeps_limit else None,
        }
    )
    return f'{head[:-1]},"requests":[{",".join(job.task.requests)}]}}'


def _load(job: _Job) -> str:
    reward = job.task.reward
    origin = None if reward.origin is None else vars(reward.origin)
    return dumps({"do": "load", "id": job.number, "reward": reward.name, "origin": origin})


def _outcome(job: _Job, answer: Mapping[str, Any]) -> Outcome:
    return Outcome(
        task=job.task,
        verdicts=[
            Failure(verdict["failure"]) if isinstance(verdict, dict) else verdict
            for verdict in answer["verdicts"]
        ],
        metrics=answer["metrics"],
        extras=answer["extras"],
        seconds=job.seconds,
    )


def _how_it_ended(said: str, status: int | None) -> Failure:
    """Why a worker's line is closed."""
    if said != "closed":
        return Failure(said)
    if status in (None, LINE_LOST):
        return Failure("closed the line to its process")
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        memory = "; perhaps memory ran out" if name == "SIGKILL" else ""
        return Failure(f"its process was ended by {name}{memory}")
    return Failure(f"ended its process with exit code {status}")
