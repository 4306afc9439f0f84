"""Environments written for TRL's `environment_factory`, taken as they are.

TRL (1.16) resets an instance with the columns of the row by name, appends the text that `reset` gives to the
last message of the user, takes every public method as a tool, and asks `get_reward()` where there is one. An
episode ends with the first turn that calls no tool.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.envs.base import MAX_TURNS
from muster.envs.tools import Tool, tool
from muster.records import Message

_NO_TOOLS = ("reset", "get_reward")

RewardFunction = Callable[..., Sequence[float | None]]


def from_trl(
    factory: Callable[[], Any], reward: RewardFunction | None = None
) -> Callable[[], "TrlEnvironment"]:
    """What makes environments from TRL's, with a reward function that reads them where one is given.

    The function is called as TRL does, with lists of one: `prompts`, `completions`, `environments` and the
    row's columns. Without it, `get_reward` gives the reward; without that, reward.use has to.
    """
    return lambda: TrlEnvironment(factory(), reward)


def is_trl(environment: object) -> bool:
    """It has what TRL asks of an environment, and neither of the methods that Muster does beside `reset`."""
    names = ("step", "reward")
    return callable(getattr(environment, "reset", None)) and not any(hasattr(environment, n) for n in names)


class TrlEnvironment:
    """An environment of TRL's as one of ours."""

    def __init__(self, inner: Any, reward: RewardFunction | None = None) -> None:
        """Takes the public methods as tools; TypeError for one that has to be awaited."""
        self.inner = inner
        self.max_turns = getattr(inner, "max_turns", MAX_TURNS)
        self.max_turn_tokens = getattr(inner, "max_turn_tokens", None)
        self.tools: tuple[Tool, ...] = tuple(_tools_of(inner))
        self._reward = reward
        self._columns: dict[str, object] = {}
        self._prompt: list[Message] = []
        self._said = ""

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
        self._said = text

    def reward(self) -> float | None:
        """What the reward function says of the episode, else `get_reward`; None without either."""
        if self._reward is not None:
            given = self._reward(
                prompts=[self._prompt],
                completions=[[{"role": "assistant", "content": self._said}]],
                environments=[self.inner],
                **{name: [value] for name, value in self._columns.items()},
            )
            if not isinstance(given, list | tuple) or len(given) != 1:
                raise TypeError(f"the reward function gave {given!r:.80}; a list of one number is expected")
            return given[0]
        own = getattr(self.inner, "get_reward", None)
        # What it gives is looked at where the host takes it.
        return own() if callable(own) else None  # pyright: ignore[reportReturnType]


def _tools_of(inner: object) -> list[Tool]:
    names = [name for name, _ in inspect.getmembers(type(inner), predicate=inspect.isfunction)]
    methods = [getattr(inner, name) for name in names if not name.startswith("_") and name not in _NO_TOOLS]
    if waiting := [method.__name__ for method in methods if inspect.iscoroutinefunction(method)]:
        raise TypeError(f"its method {waiting[0]} has to be awaited; write it with def instead of async def")
    return [tool(method) for method in methods]
