"""What samples apart from the weights that are trained, cheap enough for tests: in a thread, or in a fork."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from muster.engines.answers import Label
from muster.engines.base import Sampling
from muster.engines.local import LocalEngine
from muster.engines.process import Started
from muster.engines.queued import Queued
from muster.engines.shelf import Load
from muster.policy import Policy
from muster.records import Completion, Prompt
from muster.rewards.pool.trees import wait_for
from muster.runstate import Run
from muster.sampling_process import serve
from tiny import tiny_policy
from toy_run import toy_run

LIMIT_S = 120

pids: list[int] = []
"""Of the processes that were forked, the newest last."""


class Beside:
    """Samples on a copy of the model, in whichever thread asks for it."""

    def __init__(self, policy: Policy, pause_s: float = 0.0) -> None:
        self.engine = LocalEngine(policy)
        self.pause_s = pause_s
        self.progress: Callable[[int, int], None] = lambda done, total: None
        self.held: dict[str, dict[str, Tensor]] = {}
        self.asked: list[tuple[int, int]] = []
        """The step of each order, and the version that carried it out."""
        self.before: Callable[[int], None] = lambda step: None
        """Called with the step of an order before it is carried out."""
        self.change: Callable[[Completion], Completion] = lambda completion: completion
        """What becomes of a completion on its way."""
        self.forgets = False
        """New weights don't reach it: it samples by the first."""
        self.first: dict[str, Tensor] | None = None

    def put(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Load:
        name = str(version)
        if self.first is None or not self.forgets:
            self.held[name] = {key: tensor.detach().clone() for key, tensor in weights}
        else:
            self.held[name] = self.first
        self.first = self.first or self.held[name]
        return Load(Label(name=name, version=version, is_adapter=False), Path(name))

    def sample(self, load: Load, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        step = prompts[0].key.step
        self.asked.append((step, load.label.version))
        self.before(step)
        time.sleep(self.pause_s)
        self.engine.load_weights(self.held[load.label.name].items(), load.label.version)
        groups = self.engine.generate(prompts, sampling)
        return [[self.change(completion) for completion in group] for group in groups]

    def drop(self, load: Load) -> None:
        del self.held[load.label.name]

    def close(self) -> None:
        self.held.clear()


def ahead_run(ahead: int, *, pause_s: float = 0.0, **settings: object) -> tuple[Run, Beside]:
    """A toy run that samples so many steps ahead, and what samples for it."""
    policy = tiny_policy()
    beside = Beside(tiny_policy(), pause_s)
    engine = Queued(beside, policy.trainable)
    run = toy_run(policy, engine=engine, **{"lr": 1e-2, "ahead": ahead, **settings})
    return run, beside


def forked() -> Started:
    """A process that samples, forked from this one, so that torch is there."""
    orders, theirs = os.pipe()
    mine, answers = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(theirs)
            os.close(mine)
            signal.alarm(LIMIT_S)
            torch.set_num_threads(1)
            serve(os.fdopen(orders, "rb"), os.fdopen(answers, "wb"))
        finally:
            os._exit(0)
    os.close(orders)
    os.close(answers)
    pids.append(pid)

    def end(patience_s: float) -> int | None:
        code = wait_for(pid, patience_s)
        if code is None:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return code

    return Started(os.fdopen(theirs, "wb"), os.fdopen(mine, "rb"), end)
