"""A calculator as a tool: a question whose answer is a number, and a tool that computes it."""

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping

from muster.envs.tools import Tool, tool
from muster.records import Message

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
_MAX_CHARS = 200
_WORKED = ((12, 11), (35, 24), (81, 47))
"""Products that the opening shows worked."""


def _worked(first: int, second: int) -> tuple[Message, ...]:
    """One question, the call, its result and the answer."""
    call = json.dumps({"name": "calculate", "arguments": {"expression": f"{first} * {second}"}})
    return (
        {"role": "user", "content": f"What is {first} * {second}?"},
        {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
        {"role": "tool", "name": "calculate", "content": str(first * second)},
        {"role": "assistant", "content": f"The answer is {first * second}."},
    )


def calculate(expression: str) -> float | int:
    """Computes an expression of numbers, + - * / // % and brackets."""
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"an expression has at most {_MAX_CHARS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise ValueError(f"{expression!r} is no expression") from error
    return _value(tree.body)


def _value(node: ast.expr) -> float | int:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _BINARY[type(sign)](_value(left), _value(right))
        case _:
            raise ValueError("only numbers, + - * / // % and brackets can be computed")


class Calculator:
    """The row's prompt is a question, its `answer` a number; the last number of the last turn is what counts.

    The opening shows a few questions worked: small models don't call a tool that they never saw called.
    Parts: `right`, 1 for the right number; `near`, up to 0.3, by how near it comes to that;
    `called`, 0.2 where the tool gave a result.
    """

    max_turns = 3

    def __init__(self) -> None:
        self.tools: tuple[Tool, ...] = (tool(self.calculate),)
        self._wanted = 0.0
        self._has_called = False
        self._given: float | None = None

    def calculate(self, expression: str) -> float | int:
        """Computes an expression of numbers, + - * / // % and brackets."""
        result = calculate(expression)
        self._has_called = True
        return result

    def reset(self, row: Mapping[str, object]) -> list[Message]:
        """A few questions worked, then the row's."""
        self._wanted = float(str(row["answer"]).replace(",", ""))
        worked = [message for pair in _WORKED for message in _worked(*pair)]
        return [*worked, {"role": "user", "content": str(row["prompt"])}]

    def step(self, text: str) -> None:
        """The turn that calls no tool is the answer."""
        numbers = _NUMBER.findall(text)
        self._given = float(numbers[-1].replace(",", "")) if numbers else None

    def reward(self) -> dict[str, float]:
        """Right, near and called."""
        off = 1.0 if self._given is None else abs(self._given - self._wanted) / max(abs(self._wanted), 1.0)
        return {
            "right": float(off < 1e-9),
            "near": 0.3 * (1.0 - min(off, 1.0)),
            "called": 0.2 * self._has_called,
        }
