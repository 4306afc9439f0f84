"""From checked rows to samples: the prompt in one of its three forms, the other columns as they are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from muster.data.problems import Problems, Row, listed
from muster.data.values import is_absent, kind_of, refusal
from muster.errors import DataError
from muster.nearest import did_you_mean
from muster.records import Message, Sample


@dataclass(frozen=True, kw_only=True)
class PromptForm:
    """How a row becomes a prompt."""

    column: str
    """The column that holds it."""
    system: str | None
    """System message before a prompt of text."""
    raw: bool
    """The text is the prompt, without a chat around it."""


def mapped(rows: Sequence[Row], function: Callable[..., object], problems: Problems) -> Iterator[Row]:
    """Each row as the user's function returns it; the function gets a copy."""
    for row in rows:
        try:
            values = function(dict(row.values))
        except Exception as error:
            problems.add(row.place, f"data.map raised {type(error).__name__}: {error}")
            continue
        if isinstance(values, Mapping) and all(isinstance(name, str) for name in values):
            yield Row(row.place, dict(values))
        else:
            problems.add(
                row.place, f"data.map returned {kind_of(values)}; a row (a dict of columns) is expected"
            )


def to_samples(rows: Sequence[Row], form: PromptForm, problems: Problems) -> list[Sample]:
    """The samples of the rows, or one error with everything that is wrong with them."""
    samples = samples_of(rows, form, problems)
    problems.refuse_if_any()
    return samples


def samples_of(rows: Sequence[Row], form: PromptForm, problems: Problems) -> list[Sample]:
    """The samples of the rows, of use once nothing is noted as wrong with any of them."""
    if not rows:
        problems.refuse_if_any()
        raise DataError(f"{problems.source}: has no rows. It needs at least one.")
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    if form.column not in names:
        raise DataError(
            f"{problems.source}, {rows[0].place}: there is no column {form.column!r} for the prompts; found: "
            f"{listed(names)}.{did_you_mean(form.column, names)} Set data.prompt to the column's name."
        )
    _check_values(rows, problems)
    return [
        Sample(
            id=str(index),
            messages=() if form.raw else _messages(row, form, problems),
            text=_raw_text(row, form.column, problems) if form.raw else None,
            columns={name: _present(row.values.get(name)) for name in names if name != form.column},
        )
        for index, row in enumerate(rows)
    ]


def _present(value: object) -> object:
    return None if is_absent(value) else value


def _check_values(rows: Sequence[Row], problems: Problems) -> None:
    """Notes values that nothing can read, and columns that hold values of different kinds."""
    first: dict[str, Row] = {}
    mixed: set[str] = set()
    for row in rows:
        for name, value in row.values.items():
            if is_absent(value):
                continue
            if reason := refusal(name) or refusal(value):
                problems.add(row.place, f"column {name!r} {reason}")
            seen = first.setdefault(name, row)
            found, expected = kind_of(value), kind_of(seen.values[name])
            if found != expected and name not in mixed:
                mixed.add(name)
                problems.add(
                    row.place, f"column {name!r} holds {found}, but {expected} in {seen.place}. Use one kind"
                )


def _raw_text(row: Row, column: str, problems: Problems) -> str:
    """The text exactly as it is in the row: what surrounds it is the model's to read."""
    value = row.values.get(column)
    if is_absent(value) or value == "" or (isinstance(value, str) and not value.strip()):
        problems.add(row.place, _empty(row, column))
    elif not isinstance(value, str):
        problems.add(row.place, f"column {column!r} holds {kind_of(value)}; with data.raw, text is expected")
    else:
        return value
    return ""


def _messages(row: Row, form: PromptForm, problems: Problems) -> tuple[Message, ...]:
    """A text as the user's message, stripped, after the system message; a list of messages as it is."""
    value = row.values.get(form.column)
    if isinstance(value, str) and value.strip():
        user: Message = {"role": "user", "content": value.strip()}
        return (user,) if form.system is None else ({"role": "system", "content": form.system}, user)
    if is_absent(value) or value in ([], ()) or isinstance(value, str):
        problems.add(row.place, _empty(row, form.column))
    elif not isinstance(value, list | tuple):
        problems.add(
            row.place,
            f"column {form.column!r} holds {kind_of(value)}; text or a list of messages is expected",
        )
    elif form.system is not None:
        problems.add(
            row.place,
            f"column {form.column!r} holds messages, but data.system is for prompts of text. "
            "Put the system message into the rows",
        )
    elif reason := _messages_refusal(value):
        problems.add(row.place, f"column {form.column!r}: {reason}")
    else:
        return tuple(value)
    return ()


def shape_refusal(messages: Sequence[object]) -> str | None:
    """Why a list is not one of messages; None where it is."""
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            return f'message {number} is {kind_of(message)}; {{"role": ..., "content": ...}} is expected'
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            return f"message {number} has no role; found: {listed(map(str, message))}"
        if not isinstance(content, str | list) and not message.get("tool_calls"):
            return f"message {number} has {kind_of(content)} as content; text is expected"
    return None


def _messages_refusal(messages: Sequence[object]) -> str | None:
    """Why a list is not a conversation that the model can go on with; None where it is."""
    if reason := shape_refusal(messages):
        return reason
    last = messages[-1]
    assert isinstance(last, Mapping)
    if last["role"] == "assistant":
        return "the last message is the assistant's; it has to be one to answer. Cut it off with data.map"
    if last["role"] == "user" and not str(last.get("content") or "").strip():
        return "the last message is empty"
    return None


def _empty(row: Row, column: str) -> str:
    """Says that there is no prompt, and whether the column is there at all."""
    if column not in row.values:
        return f"has no {column!r}; found: {listed(row.values)}"
    return f"the prompt (column {column!r}) is empty"
