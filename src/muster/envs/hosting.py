"""The environments of one process, by episode; whatever a user's code does becomes an answer or a failure."""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from hashlib import blake2b
from typing import Any, NamedTuple

from muster.envs.base import Environment, as_messages, as_opening, limits_of
from muster.envs.loading import refuse_incomplete
from muster.envs.tools import Tool, answer, calls_in, tools_of
from muster.rewards.calling import reason_of
from muster.rewards.numbers import as_number
from muster.rewards.pool.working import seed_generators

Answer = dict[str, Any]
"""Plain values, as they cross to another process and back; `failure` where there is no answer."""


class _Live(NamedTuple):
    """An episode under way."""

    environment: Environment
    tools: tuple[Tool, ...]


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
            # As JSON has it, so that an answer is the same from another process.
            return json.loads(json.dumps(act(order), allow_nan=False))
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
        return {"limits": list(limits_of(environment)), "tools": schemas}

    def _open(self, order: Mapping[str, Any]) -> Answer:
        return {"messages": as_opening(self._make().reset(deepcopy(order["row"])))}

    def _reset(self, order: Mapping[str, Any]) -> Answer:
        environment = self._make()
        opening = as_opening(environment.reset(deepcopy(order["row"])))
        self._live[order["episode"]] = _Live(environment, tools_of(environment))
        return {"messages": opening}

    def _step(self, order: Mapping[str, Any]) -> Answer:
        live, text = self._live[order["episode"]], order["text"]
        if live.tools and (calls := calls_in(text)):
            results = [answer(call, live.tools) for call in calls]
            failed = sum(result.is_error for result in results)
            return {"messages": [r.message for r in results], "calls": len(results), "failed": failed}
        return {"messages": as_messages(live.environment.step(text)), "calls": 0, "failed": 0}

    def _reward(self, order: Mapping[str, Any]) -> Answer:
        live = self._live.pop(order["episode"])
        return {"parts": parts_of(live.environment.reward())}

    def _forget(self, order: Mapping[str, Any]) -> Answer:
        self._live.pop(order["episode"], None)
        return {}


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
