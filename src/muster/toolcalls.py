"""The calls of tools in what a policy says.

A call is JSON between tags, the form that Hermes, Qwen and SmolLM3 models are taught:

    <tool_call>{"name": "calculate", "arguments": {"expression": "2 * 3"}}</tool_call>
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from muster.records import Message

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)


class Call(NamedTuple):
    """A call as the policy wrote it."""

    name: str
    arguments: Mapping[str, object]
    problem: str = ""
    """Why it can't be carried out as it stands; empty where it can be tried."""


def calls_in(text: str) -> list[Call]:
    """The calls in a turn, in order; what stands between the tags and is none has its problem."""
    return [_call(found.strip()) for found in _CALL.findall(text)]


def with_calls(message: Message) -> dict[str, object]:
    """A message of the assistant with its calls beside its text, as chat templates and TRL's rewards have it.

    One in which a call is broken stays as it is, and so does one without calls or of another role.
    """
    content = message.get("content")
    calls = calls_in(content) if message.get("role") == "assistant" and isinstance(content, str) else []
    if not calls or any(call.problem for call in calls):
        return dict(message)
    assert isinstance(content, str)
    told = [
        {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call in calls
    ]
    return {**message, "content": content[: content.index("<tool_call>")].strip(), "tool_calls": told}


def _call(text: str) -> Call:
    try:
        read = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return Call("", {}, f"the call is not JSON: {error}")
    name = read.get("name") if isinstance(read, dict) else None
    if not isinstance(name, str):
        return Call("", {}, 'the call is not {"name": ..., "arguments": {...}}')
    arguments = read.get("arguments", {})
    if not isinstance(arguments, dict):
        return Call(name, {}, f"the arguments of {name} are not an object")
    return Call(name, arguments)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")
