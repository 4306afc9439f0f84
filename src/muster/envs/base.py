"""What an environment is: three methods, two limits, and tools if it has any."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from muster.records import Message

MAX_TURNS = 8
"""How often the policy speaks at most, where an environment doesn't say."""

Reply = str | Message | Sequence[Message] | None
"""What the policy is answered: a text (of the user), a message or several; None ends the episode."""

ROLES = ("user", "tool", "system")
"""Who may answer the policy."""


@runtime_checkable
class Environment(Protocol):
    """One episode: made for a rollout, reset once, stepped once per turn, asked for its reward at the end.

    Optional attributes: `max_turns`, how often the policy speaks at most; `max_turn_tokens`, how many
    tokens one turn may have; `tools`, functions that the policy may call (`muster.envs.Tool`, or plain
    functions with types and a docstring). A turn that calls tools is answered with their results; every
    other one goes to `step`.
    """

    def reset(self, row: Mapping[str, object]) -> Sequence[Message] | None:
        """The messages to begin with; None where they are the row's own.

        `row` holds the row's columns, its `messages`, and as `prompt` the last message of the user. The
        rollouts of a group share a prompt, so what is returned may depend on the row alone.
        """
        ...

    def step(self, text: str) -> Reply:
        """What the policy is answered; None where the episode is over."""
        ...

    def reward(self) -> float | Mapping[str, float] | None:
        """What the episode is worth: a number, or several by name, which are summed; None abstains."""
        ...


class Limits(NamedTuple):
    """How long an episode may be."""

    max_turns: int = MAX_TURNS
    max_turn_tokens: int | None = None
    """Tokens of one turn; None: as many as the rollout has left."""


def limits_of(environment: object) -> Limits:
    """The limits that the environment states; ValueError where one is no positive whole number."""
    found = {
        "max_turns": getattr(environment, "max_turns", MAX_TURNS),
        "max_turn_tokens": getattr(environment, "max_turn_tokens", None),
    }
    for name, value in found.items():
        is_absent = value is None and name == "max_turn_tokens"
        if not is_absent and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"its {name} is {value!r}; a whole number of at least 1 is expected")
    return Limits(**found)


def as_messages(reply: object) -> list[dict[str, object]] | None:
    """What was answered as messages; None at the end of the episode. TypeError for anything else."""
    if reply is None:
        return None
    if isinstance(reply, str):
        return [{"role": "user", "content": reply}]
    listed = [reply] if isinstance(reply, Mapping) else reply
    if not isinstance(listed, list | tuple) or not listed:
        raise TypeError(
            f"step gave {_shown(reply)}; a text, a message, a list of messages or None is expected"
        )
    return [_answer(message) for message in listed]


def as_opening(messages: object) -> list[dict[str, object]] | None:
    """The messages to begin with; None where they are the row's own. TypeError for anything else."""
    if messages is None:
        return None
    if not isinstance(messages, list | tuple) or not messages:
        raise TypeError(f"reset gave {_shown(messages)}; a list of messages or None is expected")
    read = [_message(message) for message in messages]
    if read[-1]["role"] == "assistant":
        raise TypeError("reset gave messages that end with the assistant's: there is nothing to answer")
    return read


def _answer(message: object) -> dict[str, object]:
    read = _message(message)
    if read["role"] not in ROLES:
        raise TypeError(f"step gave a message of role {read['role']!r}; {', '.join(ROLES)} are expected")
    return read


def _message(message: object) -> dict[str, object]:
    """The message as a dict of its own, its role and content being texts."""
    if not isinstance(message, Mapping):
        raise TypeError(f'{_shown(message)} is no message; {{"role": ..., "content": ...}} is expected')
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise TypeError(f"a message has {_shown(message.get(key))} as {key}; text is expected")
    return {str(key): value for key, value in message.items()}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
