"""The objects of a run, its numbers, and what changes from step to step."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from torch.optim import Optimizer

from muster.clock import Clock
from muster.engines.base import Engine, Sampling
from muster.engines.queued import Groups
from muster.evaluate import Evaluation
from muster.gather import Collector, Item
from muster.history import History
from muster.judge import Judge
from muster.policy import Policy, Weights
from muster.update import Budget, Objective


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The numbers of a run."""

    seed: int
    num_steps: int
    prompts_per_step: int
    minibatches: int = 1
    passes: int = 1
    sync_every: int = 1
    ahead: int = 0
    """Steps by which sampling runs ahead of the update."""
    resample: int = 0
    """Rounds in which prompts whose group has no signal are replaced."""
    kl_in_reward: float = 0.0
    """Coefficient of the KL penalty that is subtracted from rewards."""
    max_grad_norm: float = 1.0
    max_skipped: int = 5
    max_failed_share: float = 0.5
    max_mismatch: float = 0.05
    """Nats of mean |logprob difference| between sampler and trainer beyond which the run stops."""


Rate = Callable[[int], float]
"""Learning rate of an update, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class Flight:
    """The prompts of a step to come, which are sampled ahead of it."""

    step: int
    indices: tuple[int, ...]
    """Which of the run's items."""
    synced: int
    """The step that left the weights by which they are sampled."""
    version: int
    """Of these weights."""
    weights: Weights | None
    """A copy of them; None once the completions are there, and proven to be theirs."""
    sampled: "Future[Groups]"
    mismatch: float | None = None
    """Nats of mean |logprob difference| that the proof found."""

    @property
    def staleness(self) -> int:
        """Steps between the weights that sample and those that the step begins with."""
        return self.step - 1 - self.synced


@dataclass(kw_only=True)
class State:
    """What changes from step to step beside weights and optimizer; all of it is in a checkpoint."""

    step: int = 0
    updates: int = 0
    """Positions in the learning-rate schedule that have passed, skipped updates included."""
    drawn: int = 0
    """Prompts drawn so far, replaced ones included."""
    history: History = field(default_factory=History)
    """How the prompts drawn so far were answered."""
    num_tokens: int = 0
    """Tokens sampled so far, each completion with its prompt."""
    version: int = 0
    """Counts changes of the policy's weights."""
    skipped_in_a_row: int = 0
    old: Weights | None = None
    """The weights that sample, where they lag behind."""
    old_version: int = 0
    """Version of the weights that sample; ahead, of the newest that are sampled by."""
    flights: tuple[Flight, ...] = ()
    """What is sampled ahead, in the order of its steps."""

    @property
    def is_on_policy(self) -> bool:
        """The weights that sample are those being trained."""
        return self.version == self.old_version


class Draw(Protocol):
    """Which prompts come next: a pure function, so that a resumed run draws what it would have drawn."""

    def __call__(self, state: State, count: int, taken: Sequence[int], /) -> list[int]:
        """So many indices into the run's items; `taken` are those the step has drawn already."""
        ...


class Session(Protocol):
    """What every run has, whatever it learns from: what is trained, how far it is, and in which numbers."""

    policy: Policy
    optimizer: Optimizer
    plan: Plan
    budget: Budget
    state: State
    clock: Clock

    @property
    def engine(self) -> Engine | None:
        """What samples; None where nothing is sampled."""
        ...


@dataclass(kw_only=True)
class Run:
    """The objects of a run. `train` moves `state`, the policy and the optimizer; the rest stays."""

    policy: Policy
    optimizer: Optimizer
    collector: Collector
    items: Sequence[Item]
    draw: Draw
    sampling: Sampling
    judge: Judge
    objective: Objective
    plan: Plan
    rate: Rate
    budget: Budget
    levels: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The values of graded rewards, by name: completions are counted at each."""
    reference: Weights | None = None
    """Trainable weights of the frozen reference; None where no KL term is on."""
    evaluation: Evaluation | None = None
    state: State = field(default_factory=State)
    clock: Clock = field(default_factory=Clock)

    @property
    def engine(self) -> Engine:
        """What samples."""
        return self.collector.engine
