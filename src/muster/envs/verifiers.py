"""Tasks of verifiers (v1), taken as they are: a prompt, an answer, and rewards that read the conversation.

Of a task's own life there is what needs no server and no container: its data, and the methods that
`@reward` marked, awaited or not. Nothing of verifiers is imported here; a task is known by its parts.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from muster.files import write_atomic
from muster.records import Message

_AT_HOME = "verifiers"
_OF_A_RUNTIME = ("setup", "finalize", "stage_verifier")
_PLUGGED = ("rewards", "judges", "stops")
_ELSE = "leave such tasks out, or write an environment of your own (reset, step, reward)"
_TOLD = "messages, last_reply, last_message, num_turns, transcript, metrics or info"


def from_verifiers(make: Callable[[], Iterable[Any]]) -> "VerifiersTasks":
    """An environment for the tasks of a taskset, such as `from_verifiers(lambda: Sums(SumsConfig()))`.

    Its `write` puts the prompts where `data.path` can name them.
    """
    return VerifiersTasks(make)


class VerifiersTasks:
    """Makes an environment for each episode, over tasks that are listed once."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make
        self._tasks: list[Any] | None = None

    def __call__(self) -> "VerifiersEnvironment":
        """The environment of one episode."""
        return VerifiersEnvironment(self.tasks)

    @property
    def tasks(self) -> list[Any]:
        """All of them, in order; ValueError for none, for no end of them, or for what they need."""
        if self._tasks is None:
            taskset = self._make()
            if not getattr(taskset, "bounded", True):
                raise ValueError(f"{type(taskset).__name__} has no last task; bound it with take(n)")
            tasks = list(taskset)
            if not tasks:
                raise ValueError(f"{type(taskset).__name__} has no task; see that its data is found")
            _refuse(tasks[0])
            self._tasks = tasks
        return self._tasks

    def rows(self) -> list[dict[str, object]]:
        """A row of data per task: `prompt`, as messages, and `task`, by which its environment finds it."""
        return [{"prompt": _opening(task), "task": place} for place, task in enumerate(self.tasks)]

    def write(self, path: str | Path) -> None:
        """Writes the rows as JSON lines."""
        write_atomic(Path(path), "".join(f"{json.dumps(row)}\n" for row in self.rows()).encode())


class VerifiersEnvironment:
    """One task: the policy answers once, and the task's rewards read it."""

    max_turns = 1

    def __init__(self, tasks: list[Any]) -> None:
        self._tasks = tasks
        self._task: Any = None
        self._said: list[Message] = []

    def reset(self, row: Mapping[str, object]) -> None:
        """Takes the row's task; ValueError where the row was written for another taskset."""
        place = row.get("task")
        if not isinstance(place, int) or not 0 <= place < len(self._tasks):
            raise ValueError(f"the row's task is {place!r}, and there are {len(self._tasks)}; write it anew")
        self._task = self._tasks[place]
        opening = _opening(self._task)
        if opening[-1]["content"] != row.get("prompt"):
            raise ValueError(f"the prompt of task {place} is not the row's; write the data anew")
        self._said = opening

    def step(self, text: str) -> None:
        """Takes the answer, with which the episode is over."""
        self._said = [*self._said, {"role": "assistant", "content": text}]

    def reward(self) -> dict[str, float]:
        """By name, what each reward gives times its weight."""
        trace = Conversation(self._task, self._said)
        hooks = _rewards(self._task)
        given = asyncio.run(_given(hooks, self._task, trace))
        parts: dict[str, float] = {}
        for hook, value in zip(hooks, given, strict=True):
            named = value if isinstance(value, Mapping) else {hook.__name__: value}
            weight = getattr(hook, "_vf_weight", 1.0)
            parts |= {str(name): weight * number for name, number in named.items() if number is not None}
        return parts


class Conversation:
    """What rewards read of verifiers' `Trace`: the messages, and what follows from them.

    AttributeError, which says so, for the rest: a run's calls, timing and usage aren't there.
    """

    num_branches = 1

    def __init__(self, task: Any, messages: Iterable[Message]) -> None:
        self.task = SimpleNamespace(data=task.data)
        self.messages = [SimpleNamespace(tool_calls=None, **message) for message in messages]
        self.tool_messages: list[object] = []
        self.metrics: dict[str, float] = {}
        self.info: dict[str, object] = {}
        self.state = SimpleNamespace()

    @property
    def assistant_messages(self) -> list[SimpleNamespace]:
        """What the policy said; a prompt's own are not among them."""
        return self.messages[-1:] if self.messages[-1].role == "assistant" else []

    @property
    def num_turns(self) -> int:
        """How often it spoke."""
        return len(self.assistant_messages)

    @property
    def last_message(self) -> SimpleNamespace:
        """The last of all."""
        return self.messages[-1]

    @property
    def last_reply(self) -> str:
        """The last that the policy said, without white space around it."""
        return self.assistant_messages[-1].content.strip() if self.assistant_messages else ""

    @property
    def transcript(self) -> str:
        """The messages as one text."""
        return "\n\n".join(f"[{message.role}]\n{message.content}" for message in self.messages)

    def record_metric(self, name: str, value: float) -> None:
        """Keeps a number, for rewards that are called later."""
        self.metrics[name] = float(value)

    def record_metrics(self, values: Mapping[str, float]) -> None:
        """Keeps several."""
        for name, value in values.items():
            self.record_metric(name, value)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"trace.{name} is nothing that Muster can tell a task of verifiers; read {_TOLD}"
        )


def _opening(task: Any) -> list[Message]:
    """The task's messages; ValueError for one without a prompt, or with one that is no text."""
    data = task.data
    given = data.prompt
    if not given:
        raise ValueError(
            "a task has no prompt: a user who opens the conversation isn't played here; write one"
        )
    system = getattr(data, "system_prompt", None)
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    if isinstance(given, str):
        return [*opening, {"role": "user", "content": given}]
    return [*opening, *map(_message, given)]


def _message(message: object) -> Message:
    read = message if isinstance(message, Mapping) else vars(message)
    if not isinstance(read.get("content"), str):
        raise ValueError(
            f"a message of a task's prompt is no text: {str(read.get('content'))[:80]!r}; images are not read"
        )
    return {"role": str(read["role"]), "content": read["content"]}


def _refuse(task: Any) -> None:
    """Raises ValueError for a task that needs tool servers, a container, a runtime or a judge."""
    kind, config = type(task), getattr(task, "config", None)
    if getattr(kind, "NEEDS_CONTAINER", False):
        raise ValueError(f"{kind.__name__} needs a container, and none is started here; {_ELSE}")
    toolsets = getattr(kind, "toolsets", None)
    if toolsets is not None and toolsets(config):
        raise ValueError(
            f"{kind.__name__} has toolsets, which are servers, and none is started here; {_ELSE}"
        )
    for name in _OF_A_RUNTIME:
        home = next((one for one in kind.__mro__ if name in vars(one)), None)
        if home is not None and home.__module__.partition(".")[0] != _AT_HOME:
            raise ValueError(f"{kind.__name__}.{name} needs a runtime, and none is started here; {_ELSE}")
    for name in _PLUGGED:
        if getattr(config, name, None):
            raise ValueError(
                f"{kind.__name__} has {name} in its configuration, which aren't read here; mark methods of "
                "the task with @reward instead"
            )
    if not (hooks := _rewards(task)):
        raise ValueError(f"{kind.__name__} has no method that is marked as a reward; mark one with @reward")
    for hook in hooks:
        _arguments(hook, task, None)


def _rewards(task: Any) -> list[Callable[..., Any]]:
    """Its methods marked as rewards, those of higher priority first, then by name."""
    names = {name for kind in type(task).__mro__ for name in vars(kind)}
    found = [hook for name in names if getattr(hook := getattr(type(task), name), "reward", False) is True]
    bound = [getattr(task, hook.__name__) for hook in found]
    return sorted(bound, key=lambda hook: (-getattr(hook, "reward_priority", 0), hook.__name__))


def _arguments(hook: Callable[..., Any], task: Any, trace: object) -> dict[str, object]:
    """What a reward asks for, by name; ValueError for what there isn't."""
    there = {"task": task.data, "trace": trace}
    asked = inspect.signature(hook).parameters.values()
    if lacking := [one.name for one in asked if one.name not in there and one.default is one.empty]:
        raise ValueError(
            f"its reward {hook.__name__} asks for {lacking[0]}; there are task and trace: give it a default"
        )
    return {one.name: there[one.name] for one in asked if one.name in there}


async def _given(hooks: Iterable[Callable[..., Any]], task: Any, trace: Conversation) -> list[Any]:
    """What each gives, one after the other: a later one may read what an earlier one has recorded."""
    given: list[Any] = []
    for hook in hooks:
        value = hook(**_arguments(hook, task, trace))
        given.append(await value if isinstance(value, Awaitable) else value)
    return given
