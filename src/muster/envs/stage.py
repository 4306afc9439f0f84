"""Where environments live, as the run sees it; here in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from muster.envs.base import Limits
from muster.envs.hosting import Answer, Host
from muster.envs.loading import load, named
from muster.errors import ConfigError


class Order(NamedTuple):
    """What is asked of the environment of one episode."""

    episode: int
    """Any number; one that is reset anew forgets the episode before."""
    do: str
    """`describe`, `open` (which leaves nothing behind), `reset`, `step`, `reward`, `forget`."""
    seed: str = ""
    """Names what an environment draws at random."""
    row: Mapping[str, object] | None = None
    """Of `open` and `reset`."""
    text: str | None = None
    """Of `step`: what the policy said."""
    ended: Mapping[str, object] | None = None
    """Of `reward`, for environments that are told: `completion_ids`, `step` and `num_steps`."""

    @property
    def plain(self) -> dict[str, object]:
        """As it crosses to another process."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass(frozen=True)
class Failed:
    """There is no answer, and why: it costs the rollout, nothing else."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Described:
    """What an environment says of itself."""

    limits: Limits
    tools: tuple[Mapping[str, Any], ...] = field(default=())
    """Schemas, as chat templates take them."""
    is_told_ends: bool = False
    """Orders for its reward say what the rollout has come to."""


class Stage(Protocol):
    """Holds the environments of the rollouts under way."""

    described: Described

    def ask(self, orders: Sequence[Order]) -> list[Answer | Failed]:
        """The answers, in order; at most one order per episode."""
        ...

    def close(self) -> None:
        """Ends what the environments run in."""
        ...


class InlineStage:
    """Environments in this process, one after the other; one that hangs stops the run."""

    def __init__(self, spec: str) -> None:
        """Loads the environment; ConfigError where it can't be used."""
        self._host = Host(load(named(spec)), spec)
        self.described = read_description(self.ask([Order(0, "describe")])[0], spec)

    def ask(self, orders: Sequence[Order]) -> list[Answer | Failed]:
        """The answers, in order."""
        return [read_answer(self._host.obey(order.plain)) for order in orders]

    def close(self) -> None:
        """Does nothing: there is nothing to end."""


def read_answer(answer: Answer) -> Answer | Failed:
    """The answer, or the failure that it tells of."""
    return Failed(str(answer["failure"])) if "failure" in answer else answer


def read_description(answer: Answer | Failed, spec: str) -> Described:
    """What the environment says of itself; ConfigError where it could not be made, or is none."""
    if isinstance(answer, Failed):
        raise ConfigError(f"data.environment is {spec!r}, which can't be used: it {answer.reason}.")
    return Described(
        limits=Limits(*answer["limits"]), tools=tuple(answer["tools"]), is_told_ends=answer["is_told_ends"]
    )
