"""Environments of a few lines; free of torch, since every process that they live in imports them."""

import os
import random
import time
from collections.abc import Mapping, Sequence

from muster.envs import Tool, from_trl
from muster.records import Message


class Echo:
    """Repeats what was said, three times."""

    max_turns = 4

    def __init__(self):
        self.said = []

    def reset(self, row: Mapping[str, object]) -> Sequence[Message] | None:
        return None

    def step(self, text: str) -> object:
        self.said.append(text)
        return None if len(self.said) == 3 else f"You said {text}"

    def reward(self) -> object:
        return float(len(self.said))


class Patient(Echo):
    """Never ends an episode by itself."""

    max_turns = 3
    max_turn_tokens = 3

    def step(self, text):
        self.said.append(text)
        return "go on"


class Opener(Echo):
    """Begins with messages of its own."""

    def reset(self, row):
        return [{"role": "user", "content": f"Begin with {row['prompt']}"}]


class Fickle(Echo):
    """Opens otherwise each time."""

    def reset(self, row):
        return [{"role": "user", "content": str(random.random())}]


class Drawing(Echo):
    """Answers with a number drawn at random."""

    def step(self, text):
        return str(random.random())


class Bad(Echo):
    """Does what the text tells it to."""

    max_turns = 4

    def step(self, text):
        self.said.append(text)
        match text:
            case "raise":
                raise ValueError("no such move")
            case "leave":
                raise SystemExit(3)
            case "hang":
                time.sleep(60)
            case "die":
                os._exit(7)
            case "number":
                return 3
            case "nothing":
                return []
            case "assistant":
                return {"role": "assistant", "content": "me"}
            case _:
                pass
        return f"You said {text}"

    def reward(self):
        match self.said[-1:]:
            case ["text"]:
                return "much"
            case ["nan"]:
                return float("nan")
            case ["none"]:
                return None
            case _:
                return {"length": len(self.said), "kind": 0.5}


class Lazy(Echo):
    """Has a tool given in full, and one that is a method."""

    def __init__(self):
        super().__init__()
        schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
        shout = Tool(name="shout", description="Louder.", parameters=schema, function=str.upper)
        self.tools = [shout, self.add]

    def add(self, first: int, second: int = 1) -> int:
        """Adds two numbers."""
        return first + second


class Unfinished:
    """Has no step."""

    def reset(self, row):
        return None

    def reward(self):
        return 0.0


class Counter:
    """As TRL's users write them: a counter that the policy may raise."""

    def __init__(self):
        self.count = 0

    def reset(self, answer, **columns):
        self.count = 0
        return f" Reach {answer}."

    def increment(self, step: int) -> int:
        """Raises the counter.

        Args:
            step: By how much.
        """
        self.count += step
        return self.count


def near(environments, completions, completion_ids, answer, trainer_state, log_metric, **columns):
    """By how much the counter is off, with notes on the side."""
    log_metric("told/messages", len(completions[0]))
    log_metric("told/ids", len(completion_ids[0]))
    log_metric("told/step", trainer_state.global_step)
    return [-0.01 * abs(one.count - wanted) for one, wanted in zip(environments, answer, strict=True)]


Counted = from_trl(Counter, near, max_turns=3)
