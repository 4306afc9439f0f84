"""The environments of one process, by episode; whatever a user's code does becomes an answer or a failure."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from muster.envs.base import Environment, as_messages, as_opening, limits_of
from muster.envs.loading import refuse_incomplete
from muster.envs.tools import Tool, answer, tools_of
from muster.envs.trl import Ending, TrlEnvironment
from muster.records import Message
from muster.rewards.calling import Logged, TrainerState, reason_of
from muster.rewards.numbers import as_number
from muster.rewards.pool.wire import dumps, loads, sendable
from muster.rewards.pool.working import seed_generators
from muster.toolcalls import calls_in

Answer = dict[str, Any]
"""Plain values, as they cross to another process and back; `failure` where there is no answer."""


@dataclass(eq=False, kw_only=True)
class _Live:
    """An episode under way."""

    environment: Environment
    tools: tuple[Tool, ...]
    messages: list[Message] = field(default_factory=list)
    """What the policy said, and what it was answered before it spoke again."""
    reply: list[Message] = field(default_factory=list)
    """The last answer: whether the policy hears it shows where it speaks once more."""

    def hear(self, text: str) -> None:
        """The policy has heard the reply, and says this."""
        self.messages += [*self.reply, {"role": "assistant", "content": text}]
        self.reply = []


class Host:
    """Obeys orders about episodes, each of which has an environment of its own."""

    def __init__(self, make: Callable[[], Any], spec: str) -> None:
        self._make = make
        self._spec = spec
        self._live: dict[int, _Live] = {}

    def obey(self, order: Mapping[str, Any]) -> Answer:
        """What comes of an order: `describe`, `open`, `reset`, `step`, `reward` or `forget`."""
        seed(str(order.get("seed", "")))
        act: Callable[[Mapping[str, Any]], Answer] = getattr(self, f"_{order['do']}")
        try:
            # As it crosses to another process, so that an answer is the same from there.
            return loads(dumps(act(order)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # SystemExit and the like are the environment's own here, not the run's.
            self._live.pop(order.get("episode", -1), None)
            return {"failure": reason_of(error)}

    def _describe(self, order: Mapping[str, Any]) -> Answer:
        del order
        environment = self._make()
        refuse_incomplete(environment, self._spec)
        schemas = [one.schema for one in tools_of(environment)]
        return {
            "limits": list(limits_of(environment)),
            "tools": schemas,
            "is_told_ends": isinstance(environment, TrlEnvironment),
        }

    def _open(self, order: Mapping[str, Any]) -> Answer:
        return {"messages": as_opening(self._make().reset(deepcopy(order["row"])))}

    def _reset(self, order: Mapping[str, Any]) -> Answer:
        environment = self._make()
        opening = as_opening(environment.reset(deepcopy(order["row"])))
        self._live[order["episode"]] = _Live(environment=environment, tools=tools_of(environment))
        return {"messages": opening}

    def _step(self, order: Mapping[str, Any]) -> Answer:
        live, text = self._live[order["episode"]], order["text"]
        live.hear(text)
        if live.tools and (calls := calls_in(text)):
            results = [answer(call, live.tools) for call in calls]
            failed = sum(result.is_error for result in results)
            live.reply = [result.message for result in results]
            return {"messages": live.reply, "calls": len(results), "failed": failed}
        messages = as_messages(live.environment.step(text))
        live.reply = list(messages or ())
        return {"messages": messages, "calls": 0, "failed": 0}

    def _reward(self, order: Mapping[str, Any]) -> Answer:
        live = self._live.pop(order["episode"])
        logged = Logged()
        if isinstance(live.environment, TrlEnvironment):
            live.environment.ended(_ending(live, order.get("ended") or {}, logged))
        parts = parts_of(live.environment.reward())
        return {"parts": parts, **_noted(logged)}

    def _forget(self, order: Mapping[str, Any]) -> Answer:
        self._live.pop(order["episode"], None)
        return {}


def _ending(live: _Live, told: Mapping[str, Any], logged: Logged) -> Ending:
    """What the episode has come to; what only a run knows is empty outside one."""
    return Ending(
        messages=live.messages,
        completion_ids=told.get("completion_ids", []),
        state=TrainerState(global_step=told.get("step", 0), max_steps=told.get("num_steps", 0)),
        logged=logged,
    )


def _noted(logged: Logged) -> Answer:
    """What the reward noted on the side; empty where that is nothing."""
    if not (logged.metrics or logged.extras):
        return {}
    extras = {column: list(map(sendable, values)) for column, values in logged.extras.items()}
    return {"metrics": logged.metrics, "extras": extras}


def parts_of(given: object) -> dict[str, float]:
    """What the environment gave by name; under `reward` where it gave one number. Raises for what is none."""
    named = given if isinstance(given, Mapping) else {"reward": given}
    numbers = {str(name): as_number(value) for name, value in named.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def seed(name: str) -> None:
    """Seeds what draws from global generators by the order's name.

    An environment that draws does the same whatever ran before in its process, and whichever process it is.
    """
    seed_generators(blake2b(name.encode(), digest_size=8).digest())
