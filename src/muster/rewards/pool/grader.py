"""Rewards in processes that can be killed: one that hangs, crashes or meddles costs its sample, no more."""

import os
import threading
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from muster.errors import ConfigError, RewardError
from muster.launched import local_size
from muster.nearest import did_you_mean
from muster.records import GradingRequest, Score
from muster.rewards.calling import Failure, Logged, Surroundings, TrainerState, Verdict, verdicts, whole_batch
from muster.rewards.grading import combined
from muster.rewards.pool.crew import Crew, Occasion, Outcome, Task
from muster.rewards.pool.launching import CAN_FORK, Interpreters, forked_server, fresh_server
from muster.rewards.pool.wire import UnsendableError, dump_request, dump_sample, dumps
from muster.rewards.reward import Reward, describe

DEFAULT_LIMIT_S = 30.0

Place = Literal["named", "forked", "main"]
"""Where a reward runs: a process that loads it by name, one forked from this, or this one."""

_PLACES: Mapping[Place, str] = {
    "named": "in up to {workers} processes of its own, {limit:g} s a call",
    "forked": "in up to {workers} processes forked before the model loads, {limit:g} s a call",
    "main": "in the process of the run, without a time limit",
}


@dataclass(kw_only=True)
class CallTimes:
    """How long the calls of a reward took."""

    num_calls: int = 0
    total_s: float = 0.0
    slowest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Counts a call."""
        self.num_calls += 1
        self.total_s += seconds
        self.slowest_s = max(self.slowest_s, seconds)


class PoolGrader:
    """Runs rewards in worker processes, each call under a limit on the clock.

    Make it before a model loads: rewards that no name leads to run in processes forked from this one
    as it is then. Where the system doesn't fork, they run here, like those that ask to.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        workers: int | None = None,
        time_limit_s: float = DEFAULT_LIMIT_S,
        in_process: Collection[str] = (),
        can_fork: bool = CAN_FORK,
    ) -> None:
        """Keeps the rewards, in their order; `in_process` names those that are to run here."""
        self.rewards = tuple(rewards)
        self.workers = workers or default_workers()
        self.time_limit_s = time_limit_s
        _check_names(in_process, [reward.name for reward in self.rewards])
        self.places: dict[str, Place] = {
            reward.name: _place(reward, in_process, can_fork) for reward in self.rewards
        }
        self.times = {reward.name: CallTimes() for reward in self.rewards}
        """Of all calls so far, by reward."""
        self._logged = Logged()
        self._lock = threading.Lock()
        self._crews: dict[Place, Crew] = {}
        if self._living("named"):
            launcher = fresh_server() if can_fork else Interpreters()
            self._crews["named"] = Crew(launcher, self.workers, time_limit_s)
        if forked := self._living("forked"):
            self._crews["forked"] = Crew(forked_server(forked), self.workers, time_limit_s)
        self._end = weakref.finalize(self, _close, list(self._crews.values()), os.getpid())

    def describe(self) -> list[str]:
        """One line per reward: how it is called, and where it runs."""
        places = {
            place: text.format(workers=self.workers, limit=self.time_limit_s)
            for place, text in _PLACES.items()
        }
        return [
            f"{line}; {places[self.places[reward.name]]}"
            for reward, line in zip(self.rewards, describe(self.rewards), strict=True)
        ]

    def check(self) -> None:
        """Has a worker load every reward that it will be asked for; RewardError where it can't."""
        tasks = [
            Task(reward=reward, slots=(), requests=())
            for reward in self.rewards
            if self.places[reward.name] == "named"
        ]
        with self._lock:
            outcomes = self._crews["named"].run(tasks, Occasion(step=0, num_steps=0)) if tasks else []
        for outcome in outcomes:
            if outcome.problem:
                raise RewardError(
                    f"Reward {outcome.task.reward.name} {outcome.problem}. To run it in the process of the "
                    f'run, without a time limit: reward.in_process = ["{outcome.task.reward.name}"].'
                )

    def grade(
        self, requests: Sequence[GradingRequest], *, step: int = 0, num_steps: int | None = None
    ) -> list[Score]:
        """One score per request, in order."""
        if not requests:
            return []
        with self._lock:
            columns = self._in_workers(requests, Occasion(step=step, num_steps=num_steps or 0))
            state = TrainerState(global_step=step, max_steps=num_steps or 0)
            around = Surroundings(state=state, logged=self._logged)
            for reward in self._living("main"):
                start = time.monotonic()
                columns[reward.name] = verdicts(reward, requests, around)
                self.times[reward.name].add(time.monotonic() - start)
        return combined(self.rewards, columns, len(requests))

    def take_logged(self) -> Logged:
        """What rewards noted on the side since the last call."""
        logged, self._logged = self._logged, Logged()
        return logged

    def close(self) -> None:
        """Ends all processes that rewards run in, with whatever they started."""
        with self._lock:
            self._end()

    def _living(self, place: Place) -> list[Reward]:
        return [reward for reward in self.rewards if self.places[reward.name] == place]

    def _in_workers(self, requests: Sequence[GradingRequest], occasion: Occasion) -> dict[str, list[Verdict]]:
        """What the rewards in workers say of each request."""
        columns: dict[str, list[Verdict]] = {}
        if not self._crews:
            return columns
        lines = _lines(requests)
        outcomes: list[Outcome] = []
        for place, crew in self._crews.items():
            tasks: list[Task] = []
            for reward in self._living(place):
                columns[reward.name], sendable = _unsendable(reward, lines)
                tasks += _tasks(reward, sendable)
            outcomes += crew.run(tasks, occasion)
        order = {reward.name: number for number, reward in enumerate(self.rewards)}
        for outcome in sorted(outcomes, key=lambda o: (order[o.task.reward.name], o.task.slots)):
            column = columns[outcome.task.reward.name]
            if outcome.seconds:
                self.times[outcome.task.reward.name].add(outcome.seconds)
            for slot, verdict in zip(outcome.task.slots, outcome.verdicts, strict=True):
                column[slot] = verdict
            _note(self._logged, outcome)
        return columns


def default_workers() -> int:
    """Four, or as many as there are processors for this process; divided among the ranks of a machine."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, here) // local_size())


def _close(crews: Sequence[Crew], owner: int) -> None:
    """Closes the crews; not in a forked copy of their process, to which they don't belong."""
    for crew in crews if os.getpid() == owner else ():
        crew.close()


def _check_names(in_process: Collection[str], names: Sequence[str]) -> None:
    for name in in_process:
        if name not in names:
            raise ConfigError(
                f"reward.in_process holds {name!r}, which is no reward in use; in use: {', '.join(names)}."
                f"{did_you_mean(name, names)}"
            )


def _place(reward: Reward, in_process: Collection[str], can_fork: bool) -> Place:
    if reward.name in in_process or reward.runs_in_main:
        return "main"
    if reward.origin is not None:
        try:
            dumps(reward.origin.options)
        except UnsendableError:
            pass
        else:
            return "named"
    return "forked" if can_fork else "main"


def _lines(requests: Sequence[GradingRequest]) -> list[str | Failure]:
    """The requests as JSON, or why one can't be sent; a group's sample is written once."""
    samples: dict[int, str | Failure] = {}
    lines: list[str | Failure] = []
    for request in requests:
        key = id(request.sample)
        if key not in samples:
            samples[key] = _sample_line(request)
        sample = samples[key]
        lines.append(sample if isinstance(sample, Failure) else dump_request(request, sample))
    return lines


def _sample_line(request: GradingRequest) -> str | Failure:
    try:
        return dump_sample(request.sample)
    except (UnsendableError, ValueError, RecursionError) as error:
        return Failure(
            f"was not called: {error}; or run the reward in the process of the run: reward.in_process"
        )


def _unsendable(reward: Reward, lines: Sequence[str | Failure]) -> tuple[list[Verdict], dict[int, str]]:
    """A column with the failures of what can't be sent, and the rest by its slot."""
    column: list[Verdict] = [line if isinstance(line, Failure) else None for line in lines]
    sendable = {slot: line for slot, line in enumerate(lines) if not isinstance(line, Failure)}
    failures = [line for line in lines if isinstance(line, Failure)]
    if failures and reward.convention == "batch":
        return whole_batch(failures[0], len(lines)), {}
    return column, sendable


def _tasks(reward: Reward, lines: Mapping[int, str]) -> list[Task]:
    """One call for all where the reward takes all, or awaits all at once; else one for each."""
    if not lines:
        return []
    task = Task(reward=reward, slots=tuple(lines), requests=tuple(lines.values()))
    return [task] if reward.convention == "batch" or reward.is_async else task.split()


def _note(logged: Logged, outcome: Outcome) -> None:
    for name, values in outcome.metrics.items():
        logged.metrics.setdefault(name, []).extend(values)
    for name, values in outcome.extras.items():
        logged.extras.setdefault(name, []).extend(values)
