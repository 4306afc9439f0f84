"""Answers as token ids: the very tokens that the model would have sampled after its prompt.

A prompt is encoded as it is for sampling, what follows it by itself and never together with it, so no token
spans the boundary. An answer ends with the first token at which sampling would stop; what the template puts
between that and the next answer is read by the model and not learned.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from muster.data.answers import Answered
from muster.data.encoding import Tokenizer, encode_prompts, render_chats, token_ids
from muster.data.problems import Problems
from muster.errors import ConfigError
from muster.records import Message, Sample

_ANY_LENGTH = 2**62
"""Prompts are measured together with their answers."""


class EncodedAnswer(NamedTuple):
    """A prompt and its answer, as the model reads them."""

    sample: Sample
    ids: tuple[int, ...]
    """The prompt's tokens: those that sampling starts from."""
    text: str
    """The prompt as it was rendered."""
    answer_ids: tuple[int, ...]
    """What follows the prompt, the last token being the one at which sampling stops."""
    mask: tuple[bool, ...]
    """True where a token is learned: in a conversation, not between two answers."""

    @property
    def num_tokens(self) -> int:
        """Of prompt and answer together."""
        return len(self.ids) + len(self.answer_ids)


class EncodedAnswers(NamedTuple):
    """The answers that fit, and how many were dropped for their length."""

    answers: tuple[EncodedAnswer, ...]
    num_dropped: int


class _Turn(NamedTuple):
    """One answer of a conversation, as the template has it."""

    content: str
    opened: str
    """The conversation before it, up to where the model begins to answer."""
    closed: str
    """The same with the answer."""


def encode_answers(
    rows: Sequence[Answered],
    tokenizer: Tokenizer,
    *,
    stop_ids: Collection[int],
    max_tokens: int,
    source: str,
    chat_template_kwargs: Mapping[str, object] | None = None,
    overlong: Literal["refuse", "drop"] = "refuse",
) -> EncodedAnswers:
    """The rows as tokens; one DataError names every row that can't be learned as it is.

    Longer ones than `max_tokens`, prompt and answer together, are refused or dropped, never cut.
    """
    prompts = encode_prompts(
        [row.sample for row in rows],
        tokenizer,
        max_prompt_tokens=_ANY_LENGTH,
        chat_template_kwargs=chat_template_kwargs,
    ).prompts
    turns = _rendered(rows, [prompt.text for prompt in prompts], tokenizer, chat_template_kwargs or {})
    problems, fitting, num_long = Problems(source), list[EncodedAnswer](), 0
    for row, prompt, own in zip(rows, prompts, turns, strict=True):
        pieces = _raw_piece(row, tokenizer) if row.text is not None else _pieces(own, tokenizer, stop_ids)
        if isinstance(pieces, str):
            problems.add(row.place, pieces)
            continue
        ids = tuple(token for piece in pieces for token in piece.ids)
        mask = tuple(piece.is_learned for piece in pieces for _ in piece.ids)
        answer = EncodedAnswer(row.sample, prompt.ids, prompt.text, ids, mask)
        if answer.num_tokens <= max_tokens:
            fitting.append(answer)
            continue
        num_long += 1
        if overlong == "refuse":
            problems.add(row.place, _too_long(answer, max_tokens))
    problems.refuse_if_any()
    if not fitting:
        problems.add("all rows", f"each is longer than model.max_tokens = {max_tokens}. Raise it")
        problems.refuse_if_any()
    return EncodedAnswers(tuple(fitting), num_long)


def _too_long(answer: EncodedAnswer, max_tokens: int) -> str:
    return (
        f"prompt and answer have {answer.num_tokens} tokens, and model.max_tokens is {max_tokens}. Raise it, "
        'shorten the row, or set data.overlong = "drop" to leave such rows out'
    )


class _Piece(NamedTuple):
    """Some tokens after the prompt: an answer, or what the template puts before the next one."""

    ids: tuple[int, ...]
    is_learned: bool


def _raw_piece(row: Answered, tokenizer: Tokenizer) -> list[_Piece]:
    """The answer to a raw prompt, and the tokenizer's end token, at which sampling stops."""
    end, text = getattr(tokenizer, "eos_token_id", None), row.text or ""
    if not isinstance(end, int):
        raise ConfigError(
            "The model's tokenizer has no end token, so an answer to a raw prompt could not end. Name one as "
            "eos_token in its tokenizer_config.json."
        )
    [ids] = token_ids([text], tokenizer)
    return [_Piece((*ids, end), True)]


def _rendered(
    rows: Sequence[Answered], prompts: Sequence[str], tokenizer: Tokenizer, options: Mapping[str, object]
) -> list[list[_Turn]]:
    """Every answer of every chat as the template has it; nothing for raw rows."""
    places = [
        (number, place)
        for number, row in enumerate(rows)
        for place, turn in enumerate(row.turns)
        if turn["role"] == "assistant"
    ]
    closed = _texts(rows, [(number, place + 1) for number, place in places], tokenizer, options, opens=False)
    later = [(number, place) for number, place in places if place]
    opened = dict(zip(later, _texts(rows, later, tokenizer, options, opens=True), strict=True))
    found: list[list[_Turn]] = [[] for _ in rows]
    for (number, place), text in zip(places, closed, strict=True):
        content = rows[number].turns[place].get("content")
        before = opened.get((number, place), prompts[number])
        found[number].append(_Turn(content if isinstance(content, str) else "", before, text))
    return found


def _texts(
    rows: Sequence[Answered],
    places: Sequence[tuple[int, int]],
    tokenizer: Tokenizer,
    options: Mapping[str, object],
    *,
    opens: bool,
) -> list[str]:
    """The conversations up to these turns; with `opens`, up to where the model begins to answer."""
    samples = [_up_to(rows[number], rows[number].turns[:place]) for number, place in places]
    return render_chats(samples, tokenizer, options, add_generation_prompt=opens)


def _up_to(row: Answered, turns: Sequence[Message]) -> Sample:
    return Sample(id=row.sample.id, messages=(*row.sample.messages, *turns))


def _pieces(turns: Sequence[_Turn], tokenizer: Tokenizer, stop_ids: Collection[int]) -> list[_Piece] | str:
    """The answers of a chat and what lies between them; or, in words, why they can't be learned."""
    pieces: list[_Piece] = []
    left: tuple[int, ...] = ()
    for number, turn in enumerate(turns, start=1):
        if not turn.closed.startswith(turn.opened):
            return _no_prefix(number, "its own prompt")
        if number > 1:
            before = turns[number - 2].closed
            if not turn.opened.startswith(before):
                return _no_prefix(number, "the turns before it")
            [between] = token_ids([turn.opened[len(before) :]], tokenizer)
            pieces.append(_Piece((*left, *between), False))
        ids, content = token_ids([turn.closed[len(turn.opened) :], turn.content], tokenizer)
        end = next((place for place, token in enumerate(ids) if token in stop_ids), None)
        if reason := _unlearnable(number, content, end, stop_ids):
            return reason
        assert end is not None
        pieces.append(_Piece(ids[: end + 1], True))
        left = ids[end + 1 :]
    return pieces


def _unlearnable(number: int, content: Sequence[int], end: int | None, stop_ids: Collection[int]) -> str:
    """Why an answer can't be learned; empty where it can."""
    if set(stop_ids) & set(content):
        return (
            f"answer {number} holds the text of a token at which sampling stops, so what follows could never "
            "be sampled. Take it out"
        )
    if end is None:
        return (
            f"answer {number}: the chat template ends it with none of the tokens at which sampling stops "
            f"({', '.join(map(str, sorted(stop_ids)))}), so the model would not learn to end. Name the "
            "template's end token as eos_token_id in generation_config.json"
        )
    return "" if end else f"answer {number} has no tokens: the chat template leaves nothing of it"


def _no_prefix(number: int, what: str) -> str:
    return (
        f"answer {number}: the chat template renders {what} otherwise once the answer is there, so what is "
        "learned is not what sampling would continue. Cut the row after an earlier answer with data.map, or "
        "set what the template reads in data.chat_template_kwargs (enable_thinking, for one)"
    )
