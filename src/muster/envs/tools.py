"""Tools: functions that the policy may call, and what its calls are answered."""

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import NamedTuple, Union, get_args, get_origin

from muster.toolcalls import Call

_ENTRY = re.compile(r"(\w+)(?:\s*\([^)]*\))?\s*:\s*(.*)")
"""The first line of a parameter in a docstring."""
_SECTIONS = ("Args:", "Returns:", "Raises:")
_KINDS: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    NoneType: "null",
}
_PYTHON: Mapping[str, type | tuple[type, ...]] = {
    **{word: kind for kind, word in _KINDS.items()},
    "number": (int, float),
}


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function with what the policy is told of it."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments: an object with `properties` and `required`."""
    function: Callable[..., object]
    """Called with the arguments by name; what it returns is what the policy is answered."""

    @property
    def schema(self) -> dict[str, object]:
        """As chat templates take it."""
        told = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": told}


class Result(NamedTuple):
    """What a call is answered."""

    name: str
    text: str
    is_error: bool

    @property
    def message(self) -> dict[str, object]:
        """As a message of the role `tool`."""
        return {"role": "tool", "name": self.name, "content": self.text}


def tool(function: Callable[..., object]) -> Tool:
    """The function as a tool: its name, its docstring, and a schema from its parameters' types.

    What the docstring says of parameters, in Google's form, goes into the schema, as transformers has it.

    Raises TypeError for a parameter without a type, or of one that JSON has no word for.
    """
    hints = typing.get_type_hints(function)
    told = _docstring(function)
    properties: dict[str, object] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {function.__name__}: parameter {name} can't be passed by name")
        if name not in hints:
            raise TypeError(f"tool {function.__name__}: parameter {name} has no type")
        schema = _schema_of(hints[name], f"tool {function.__name__}: parameter {name}")
        properties[name] = schema | ({"description": told.arguments[name]} if name in told.arguments else {})
        if parameter.default is parameter.empty:
            required.append(name)
    return Tool(
        name=function.__name__,
        description=told.description,
        parameters={"type": "object", "properties": properties, "required": required},
        function=function,
    )


class _Told(NamedTuple):
    """What a docstring says."""

    description: str
    arguments: dict[str, str]


def _docstring(function: Callable[..., object]) -> _Told:
    """The function's docstring, with what it says of parameters under `Args:` taken apart."""
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in inspect.cleandoc(function.__doc__ or "").splitlines():
        if line.rstrip() in _SECTIONS:
            current = line.rstrip()
            sections[current] = []
        else:
            sections[current].append(line)
    arguments: dict[str, str] = {}
    lines = [line for line in sections.get("Args:", ()) if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    name = ""
    for line in lines:
        entry = _ENTRY.fullmatch(line[indent:].rstrip())
        if entry is not None:
            name, arguments[entry[1]] = entry[1], entry[2]
        elif name:
            arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return _Told("\n".join(sections[""]).strip(), arguments)


def _schema_of(hint: object, what: str) -> dict[str, object]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema_of(part, what) for part in inner]}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    kind = origin if isinstance(origin, type) else hint
    if not isinstance(kind, type) or kind not in _KINDS:
        raise TypeError(
            f"{what} is of type {hint}; {', '.join(known.__name__ for known in _KINDS)} are known"
        )
    schema: dict[str, object] = {"type": _KINDS[kind]}
    return schema | {"items": _schema_of(inner[0], what)} if kind is list and inner else schema


def tools_of(environment: object) -> tuple[Tool, ...]:
    """The environment's tools; TypeError where they are none, ValueError for two of one name."""
    found = getattr(environment, "tools", ())
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise TypeError(f"its tools are {type(found).__name__}; a list is expected")
    tools = tuple(one if isinstance(one, Tool) else tool(one) for one in found)
    names = [one.name for one in tools]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two of its tools are called {twice[0]!r}")
    return tools


def answer(call: Call, tools: Sequence[Tool]) -> Result:
    """The result of the call, or an error that the policy can read: its mistakes are for it to mend."""
    problem, by_name = call.problem, {one.name: one for one in tools}
    if not problem and call.name not in by_name:
        problem = f"there is no tool {call.name!r}; there are: {', '.join(by_name)}"
    if not problem:
        problem = _wrong_arguments(call.arguments, by_name[call.name])
    if problem:
        return Result(call.name, f"error: {problem}", True)
    try:
        return Result(call.name, _as_text(by_name[call.name].function(**call.arguments)), False)
    except Exception as error:
        return Result(call.name, f"error: {type(error).__name__}: {error}", True)


def _wrong_arguments(arguments: Mapping[str, object], wanted: Tool) -> str:
    """What is wrong with the arguments by the tool's schema; empty where nothing is."""
    properties = wanted.parameters.get("properties")
    required = wanted.parameters.get("required")
    known: Mapping[str, object] = properties if isinstance(properties, Mapping) else {}
    for name in required if isinstance(required, list | tuple) else ():
        if name not in arguments:
            return f"{wanted.name} needs the argument {name!r}"
    for name, value in arguments.items():
        if name not in known:
            return f"{wanted.name} has no argument {name!r}; it has: {', '.join(known)}"
        schema = known[name]
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        python = _PYTHON.get(kind) if isinstance(kind, str) else None
        is_number = kind in ("integer", "number") and isinstance(value, bool)
        if python is not None and (is_number or not isinstance(value, python)):
            return f"the argument {name!r} of {wanted.name} is no {kind}"
    return ""


def _as_text(value: object) -> str:
    """A text as it is, what JSON can hold as JSON, anything else as Python shows it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def described(schemas: Sequence[Mapping[str, object]]) -> str:
    """The tools in words, for templates that don't tell of them."""
    lines = "\n".join(json.dumps(schema.get("function"), ensure_ascii=False) for schema in schemas)
    return (
        f"You have these tools:\n{lines}\n"
        'To use one, answer with <tool_call>{"name": NAME, "arguments": {...}}</tool_call> and nothing else. '
        "Its result comes next."
    )
