"""Tools: schemas from signatures, calls found in texts, and what broken ones are answered."""

import pytest

from muster.envs import Tool, tool
from muster.envs.calculator import calculate
from muster.envs.tools import answer, described, tools_of
from muster.toolcalls import calls_in
from toy_environments import Lazy


def call(text: str) -> str:
    return f"<tool_call>{text}</tool_call>"


def answered(text: str, tools: tuple[Tool, ...] | None = None) -> list[str]:
    known = tools_of(Lazy()) if tools is None else tools
    return [answer(one, known).text for one in calls_in(text)]


def test_a_function_is_a_tool_by_its_types_and_its_docstring():
    def look(place: str, deep: bool = False, marks: list[int] | None = None, how: float = 1.0) -> str:
        """Looks at a place.

        Twice.
        """
        return f"{place} {deep} {marks} {how}"

    assert tool(look).schema == {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks at a place.\n\nTwice.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string"},
                    "deep": {"type": "boolean"},
                    "marks": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
                    "how": {"type": "number"},
                },
                "required": ["place"],
            },
        },
    }


def test_a_parameter_that_json_has_no_word_for_is_refused():
    def take(what: bytes) -> None: ...

    def guess(what) -> None: ...

    with pytest.raises(TypeError, match="parameter what is of type <class 'bytes'>"):
        tool(take)
    with pytest.raises(TypeError, match="parameter what has no type"):
        tool(guess)


def test_calls_are_found_in_order_whatever_stands_around_them():
    text = (
        "First "
        + call('{"name": "add", "arguments": {"first": 2}}')
        + " then\n"
        + call('\n{"name": "shout", "arguments": {"word": "hey"}}\n')
    )
    assert [(one.name, one.arguments) for one in calls_in(text)] == [
        ("add", {"first": 2}),
        ("shout", {"word": "hey"}),
    ]
    assert calls_in("nothing of the kind") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"name": "add", "arguments": {"first": 1', "the call is not JSON"),
        ("null", "the call is not"),
        ("[]", "the call is not"),
        ('{"name": "add", "arguments": {"first": NaN}}', "NaN is no number"),
        ('{"name": 3, "arguments": {}}', "the call is not"),
        ('{"name": "add", "arguments": []}', "not an object"),
        ('{"name": "subtract", "arguments": {}}', "there is no tool 'subtract'; there are: shout, add"),
        ('{"name": "add", "arguments": {}}', "add needs the argument 'first'"),
        ('{"name": "add", "arguments": {"first": 1, "third": 2}}', "add has no argument 'third'"),
        ('{"name": "add", "arguments": {"first": "1"}}', "'first' of add is no integer"),
        ('{"name": "add", "arguments": {"first": true}}', "'first' of add is no integer"),
        ("[" * 100_000, "the call is not JSON"),
    ],
)
def test_a_broken_call_is_answered_with_what_is_wrong(text: str, says: str):  # B48
    [told] = answered(call(text))
    assert told.startswith("error: ")
    assert says in told


def test_a_call_that_was_not_closed_is_one():
    assert answered('<tool_call>{"name": "add", "arguments": {"first": 2, "second": 3}}') == ["5"]


def test_what_a_tool_raises_is_its_answer():
    def fail(reason: str) -> None:
        """Fails."""
        raise KeyError(reason)

    assert answered(call('{"name": "fail", "arguments": {"reason": "x"}}'), (tool(fail),)) == [
        "error: KeyError: 'x'"
    ]


def test_two_tools_of_one_name_are_refused():
    class Twins:
        tools = (tool(calculate), tool(calculate))

    with pytest.raises(ValueError, match="two of its tools are called 'calculate'"):
        tools_of(Twins())


def test_tools_in_words_name_each_with_its_schema():
    text = described([one.schema for one in tools_of(Lazy())])
    assert '{"name": "shout", "description": "Louder."' in text
    assert "<tool_call>" in text


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("-7 // 2", -4), ("7 % 4 - 1.5", 1.5), (" 10 / 4 ", 2.5)],
)
def test_the_calculator_computes(expression: str, value: float):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "2 **", "9 ** 9 ** 9", "__import__('os').system('true')", "abs(-1)", "True + 1", "1 +" * 100 + "1"],
)
def test_the_calculator_computes_nothing_else(expression: str):
    with pytest.raises(ValueError):
        calculate(expression)
