"""Environments written for TRL's `environment_factory`, taken as they are.

TRL (1.16) resets an instance with the columns of the row by name, appends the text that `reset` gives to the
last message of the user, takes every public method as a tool, and asks `get_reward()` where there is one. An
episode ends with the first turn that calls no tool. Reward functions read the whole conversation.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.envs.base import MAX_TURNS
from muster.envs.tools import Tool, tool
from muster.records import Message
from muster.rewards.calling import Logged, TrainerState
from muster.rewards.conventions import Signature, call, missing_columns, read_signature
from muster.rewards.naming import distinct_names, function_name
from muster.rewards.numbers import as_list
from muster.toolcalls import with_calls

_NO_TOOLS = ("reset", "get_reward")

RewardFunction = Callable[..., Sequence[float | None] | Awaitable[Sequence[float | None]]]


class Toolbox:
    """What there is where only tools are given: nothing to reset."""

    def reset(self, **columns: object) -> None:
        """Begins with the row's own messages."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What an episode has come to."""

    messages: Sequence[Message]
    """What the policy said and was answered, after the prompt."""
    completion_ids: Sequence[int]
    """Of the whole rollout, with the tokens that the policy was given; empty outside a run."""
    state: TrainerState
    logged: Logged
    """Takes what a reward notes on the side."""


def from_trl(
    factory: Callable[[], Any] | None = None,
    reward: RewardFunction | Sequence[RewardFunction] = (),
    *,
    tools: Sequence[Callable[..., object]] = (),
    max_turns: int | None = None,
) -> Callable[[], "TrlEnvironment"]:
    """What makes environments from TRL's, from functions as `tools`, or from both.

    Reward functions that read environments are called as TRL calls them, with lists of one; what each gives
    is a part by its name, `get_reward` of the environment another by the class's. Without either, reward.use
    has to name a reward. `max_turns` is TRL's `max_tool_calling_iterations` and one more.
    """
    make = Toolbox if factory is None else factory
    rewards = (reward,) if callable(reward) else tuple(reward)
    return lambda: TrlEnvironment(make(), rewards, tools=tools, max_turns=max_turns)


def is_trl(environment: object) -> bool:
    """It has what TRL asks of an environment, and neither of the methods that Muster does beside `reset`."""
    # Looked up on the class: a property may compute a reward where it is merely read.
    names = ("step", "reward")
    methods = (inspect.getattr_static(environment, name, None) for name in names)
    return callable(getattr(environment, "reset", None)) and not any(map(callable, methods))


class TrlEnvironment:
    """An environment of TRL's as one of ours."""

    def __init__(
        self,
        inner: Any,
        rewards: Sequence[RewardFunction] = (),
        *,
        tools: Sequence[Callable[..., object]] = (),
        max_turns: int | None = None,
    ) -> None:
        """Takes the public methods as tools, beside those given; TypeError for one that has to be awaited."""
        self.inner = inner
        self.max_turns = getattr(inner, "max_turns", MAX_TURNS) if max_turns is None else max_turns
        self.max_turn_tokens = getattr(inner, "max_turn_tokens", None)
        self.tools: tuple[Tool, ...] = tuple(map(_tool, [*tools, *_methods_of(inner)]))
        self._rewards = dict(zip(distinct_names(map(function_name, rewards)), rewards, strict=True))
        self._signatures = {name: read_signature(one, "batch") for name, one in self._rewards.items()}
        self._columns: dict[str, object] = {}
        self._prompt: list[Message] = []
        self._ending: Ending | None = None

    def reset(self, row: Mapping[str, object]) -> list[Message] | None:
        """Resets the inner one with the row; what it gives goes behind the last message of the user."""
        messages = row["messages"]
        assert isinstance(messages, list)
        self._columns = {name: value for name, value in row.items() if name not in ("messages", "prompt")}
        self._prompt = messages
        said = self.inner.reset(prompt=messages, **self._columns)
        if said is None:
            return None
        if not isinstance(said, str):
            raise TypeError(
                f"reset gave {type(said).__name__}; a text or None is expected of TRL's environments"
            )
        last = messages[-1]
        self._prompt = [*messages[:-1], {**last, "content": f"{last['content']}{said}"}]
        return self._prompt

    def step(self, text: str) -> None:
        """The turn that calls no tool is the last."""

    def ended(self, ending: Ending) -> None:
        """Keeps what the reward functions read."""
        self._ending = ending

    def reward(self) -> dict[str, object]:
        """By name, what each reward function says of the episode, and `get_reward`; empty without either."""
        given = {name: self._asked(name, signature) for name, signature in self._signatures.items()}
        own = getattr(self.inner, "get_reward", None)
        return given | ({type(self.inner).__name__: _result(own())} if callable(own) else {})

    def _asked(self, name: str, signature: Signature) -> object:
        """What the function gives for the one episode; TypeError for other than a list of one."""
        ending = self._ending
        assert ending is not None
        columns: dict[str, object] = {column: [value] for column, value in self._columns.items()}
        columns["environments"] = [self.inner]
        if missing := list(missing_columns(signature, columns, ())):
            raise TypeError(
                f"the reward function {name} asks for {missing[0]}, which is no column of the row; add the "
                "column to the data, or give the parameter a default"
            )
        supplied: Mapping[str, Callable[[], object]] = {
            "prompts": lambda: [self._prompt],
            "completions": lambda: [
                [with_calls(message) if self.tools else dict(message) for message in ending.messages]
            ],
            "completion_ids": lambda: [list(ending.completion_ids)],
            "trainer_state": lambda: ending.state,
            "log_extra": lambda: ending.logged.log_extra,
            "log_metric": lambda: ending.logged.log_metric,
        }
        returned = _result(
            call(self._rewards[name], signature, supplied=supplied, columns=columns, options={})
        )
        values = as_list(returned)
        if len(values) != 1:
            raise TypeError(f"the reward function {name} gave {returned!r:.80}; a list of one is expected")
        return values[0]


def _methods_of(inner: object) -> list[Callable[..., object]]:
    names = [name for name, _ in inspect.getmembers(type(inner), predicate=inspect.isfunction)]
    return [getattr(inner, name) for name in names if not name.startswith("_") and name not in _NO_TOOLS]


def _tool(function: Callable[..., object]) -> Tool:
    """The function as a tool whose results are the texts that TRL makes of them."""
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"its tool {function.__name__} has to be awaited; write it with def, not async def")
    return replace(tool(function), function=lambda **arguments: str(function(**arguments)))


def _result(value: object) -> object:
    """The value, or what comes of it where it has to be awaited."""

    async def awaited(waiting: Awaitable[object]) -> object:
        return await waiting

    return asyncio.run(awaited(value)) if isinstance(value, Awaitable) else value
