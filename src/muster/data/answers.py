"""Rows with answers to learn: a prompt and its answer, or a conversation in which each answer is learned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from muster.data.problems import Problems, Row, listed
from muster.data.rows import PromptForm, samples_of, shape_refusal
from muster.data.values import is_absent, kind_of, refusal
from muster.errors import DataError
from muster.nearest import did_you_mean
from muster.records import Message, Sample

MESSAGES = "messages"
"""The column that holds a whole conversation, where there is no column of answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """A prompt with what is to be learned as its answer."""

    place: str
    """Where a person finds the row, for messages."""
    sample: Sample
    """The prompt: of a conversation, all before the first answer."""
    turns: tuple[Message, ...] = ()
    """What follows the prompt of a chat: an answer and, in a conversation, all up to the last one."""
    text: str | None = None
    """The answer to a raw prompt; None in a chat."""


def to_answers(rows: Sequence[Row], form: PromptForm, column: str, problems: Problems) -> list[Answered]:
    """The answers of the rows, or one error with everything that is wrong with them.

    A row has its prompt in the column of `form` and its answer in `column`, or a conversation in `messages`.
    """
    names = dict.fromkeys(name for row in rows for name in row.values)
    if column in names or not rows:
        answers = _pairs(rows, form, column, problems)
    elif MESSAGES in names and not form.raw:
        answers = _conversations(rows, form, problems)
    else:
        raise DataError(
            f"{problems.source}, {rows[0].place}: there is no column {column!r} for the answers, and no "
            f"{MESSAGES!r} with conversations; found: {listed(names)}.{did_you_mean(column, names)} Set "
            "data.completion to the column's name."
        )
    problems.refuse_if_any()
    return answers


def _pairs(rows: Sequence[Row], form: PromptForm, column: str, problems: Problems) -> list[Answered]:
    """Prompts and answers in columns of their own."""
    samples = samples_of(rows, form, problems)
    return [
        Answered(
            place=row.place,
            sample=_without(sample, column),
            turns=() if form.raw else _answer(row, column, problems),
            text=_raw_answer(row, column, problems) if form.raw else None,
        )
        for row, sample in zip(rows, samples, strict=True)
    ]


def _without(sample: Sample, column: str) -> Sample:
    """The sample, its answer no longer among its columns."""
    return replace(sample, columns={name: cell for name, cell in sample.columns.items() if name != column})


def _raw_answer(row: Row, column: str, problems: Problems) -> str:
    """The text exactly as it is in the row."""
    value = row.values.get(column)
    if isinstance(value, str) and value.strip():
        return value
    problems.add(row.place, _no_text(row, column, "with data.raw, text is expected"))
    return ""


def _answer(row: Row, column: str, problems: Problems) -> tuple[Message, ...]:
    """A text as the assistant's message, exactly as it is; a list of messages as it is."""
    value = row.values.get(column)
    if isinstance(value, str) and value.strip():
        return ({"role": "assistant", "content": value},)
    if not isinstance(value, list | tuple) or not value:
        problems.add(row.place, _no_text(row, column, "text or a list of messages is expected"))
    elif reason := shape_refusal(value) or _turns_refusal(value):
        problems.add(row.place, f"column {column!r}: {reason}")
    else:
        return tuple(value)
    return ()


def _no_text(row: Row, column: str, expected: str) -> str:
    value = row.values.get(column)
    if column not in row.values:
        return f"has no {column!r}; found: {listed(row.values)}"
    if is_absent(value) or isinstance(value, str) or value in ([], ()):
        return f"the answer (column {column!r}) is empty. Fill it in, or leave the row out"
    return f"column {column!r} holds {kind_of(value)}; {expected}"


def _turns_refusal(turns: Sequence[Mapping[str, object]]) -> str | None:
    """Why messages are no answers from the first to the last; None where they are."""
    if turns[0]["role"] != "assistant":
        return f"the answer begins with a message of role {turns[0]['role']!r}; the assistant's is expected"
    if turns[-1]["role"] != "assistant":
        return "the last message is not the assistant's, and nothing follows it. Cut it off with data.map"
    for number, turn in enumerate(turns, start=1):
        has_words = turn.get("tool_calls") or str(turn.get("content") or "").strip()
        if turn["role"] == "assistant" and not has_words:
            return f"answer {number} is empty. Fill it in, or leave the row out"
    return None


def _conversations(rows: Sequence[Row], form: PromptForm, problems: Problems) -> list[Answered]:
    """Conversations, cut before the first answer."""
    halves = [_halves(row, form, problems) for row in rows]
    asked = [
        Row(row.place, {**row.values, MESSAGES: list(messages)})
        for row, (messages, _) in zip(rows, halves, strict=True)
    ]
    # A row that is wrong has no prompt: it is told of once, and no more rules are held against it.
    sound = [place for place, (messages, _) in enumerate(halves) if messages]
    samples = samples_of(
        [asked[place] for place in sound], PromptForm(column=MESSAGES, system=None, raw=False), problems
    )
    return [
        Answered(place=rows[place].place, sample=replace(sample, id=str(place)), turns=halves[place][1])
        for place, sample in zip(sound, samples, strict=True)
    ]


def _halves(
    row: Row, form: PromptForm, problems: Problems
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """What comes before the first answer of a conversation, and the rest; both empty where it is none."""
    value = row.values.get(MESSAGES)
    if not isinstance(value, list | tuple) or not value:
        problems.add(row.place, _no_list(row))
    elif reason := refusal(value):
        problems.add(row.place, f"column {MESSAGES!r} {reason}")
    elif reason := shape_refusal(value):
        problems.add(row.place, f"column {MESSAGES!r}: {reason}")
    elif form.system is not None:
        problems.add(
            row.place,
            f"column {MESSAGES!r} holds messages, but data.system is for prompts of text. "
            "Put the system message into the rows",
        )
    else:
        messages = tuple(value)
        roles = [message["role"] for message in messages]
        first = roles.index("assistant") if "assistant" in roles else None
        if first is None:
            reason = "no message is the assistant's, so there is no answer to learn"
        elif first == 0:
            reason = "the first message is the assistant's, so nothing is asked. Put a user's before it"
        elif not (reason := _turns_refusal(messages[first:])):
            return messages[:first], messages[first:]
        problems.add(row.place, f"column {MESSAGES!r}: {reason}")
    return (), ()


def _no_list(row: Row) -> str:
    value = row.values.get(MESSAGES)
    if is_absent(value) or value in ([], ()):
        return f"the conversation (column {MESSAGES!r}) is empty. Fill it in, or leave the row out"
    return f"column {MESSAGES!r} holds {kind_of(value)}; a list of messages is expected"
