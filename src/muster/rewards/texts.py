"""Rewards that compare text: counted, contained, equal, or matched by a pattern."""

import re
import unicodedata
from typing import Annotated, Literal

from annotated_types import MinLen
from pydantic import AfterValidator

from muster.rewards.answers import accepted, after_thinking, marked_answer, plain


def char_count(
    completion: str,
    prompt_text: str,
    *,
    character: Annotated[str, MinLen(1)] = ".",
    over: Literal["completion", "sample"] = "completion",
) -> float:
    """How often the character occurs in the completion, or in the whole sample (prompt and completion)."""
    return float((prompt_text + completion if over == "sample" else completion).count(character))


def contains_answer(
    completion: str, answer: object, *, ignore_case: bool = False, whole_words: bool = False
) -> float | None:
    """1 where the answer's text occurs in the completion, else 0; None where the row has no answer.

    An empty answer is in every text, so it is no answer. Of a list of answers any one will do. With
    `whole_words` the answer must not be a part of a longer word or number.
    """
    wanted = accepted(answer)
    if not wanted:
        return None
    if ignore_case:
        completion, wanted = completion.casefold(), [text.casefold() for text in wanted]
    if whole_words:
        return float(any(re.search(_whole(text), completion) for text in wanted))
    return float(any(text in completion for text in wanted))


def exact(
    completion: str, answer: object, *, ignore_case: bool = False, marked: bool = False
) -> float | None:
    """1 where the completion is the answer and nothing else, else 0; None where the row has no answer.

    White space around both is left out, runs of it count as one space, and accents may be written
    either way (Unicode NFC). With `marked` the last marked answer is compared instead of all the text.
    Of a list of answers any one will do.
    """
    wanted = accepted(answer)
    if not wanted:
        return None
    given = marked_answer(after_thinking(completion)) if marked else completion
    if given is None:
        return 0.0
    normal = _normal(plain(given) if marked else given, ignore_case)
    return float(any(normal == _normal(plain(text) if marked else text, ignore_case) for text in wanted))


def _compiles(pattern: str) -> str:
    """The pattern, refused where it is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from error
    return pattern


def regex(
    completion: str,
    *,
    pattern: Annotated[str, MinLen(1), AfterValidator(_compiles)],
    whole: bool = False,
) -> float:
    """1 where the pattern is found in the completion, else 0; with `whole` it must match all of it.

    Flags are written into the pattern: `(?i)` for any case, `(?s)` for a dot that matches line ends.
    """
    match = re.fullmatch(pattern, completion) if whole else re.search(pattern, completion)
    return float(match is not None)


def _whole(text: str) -> str:
    """A pattern for the text where it is not a part of a longer word or number.

    It starts with the text itself, which is quick to look for; what must not stand before is asked after.
    """
    before = r"(?<!\w)" if text[0].isalnum() else ""
    after = r"(?!\w)" if text[-1].isalnum() else ""
    if text[0].isdigit():
        before += r"(?<!\d[.,])(?<![-\u2212])"
    if text[-1].isdigit():
        after += r"(?![.,]\d)"
    literal = re.escape(text)
    return f"{literal}(?<={before}{literal}){after}"


def _normal(text: str, ignore_case: bool) -> str:
    """The text as it is compared."""
    joined = unicodedata.normalize("NFC", " ".join(text.split()))
    return joined.casefold() if ignore_case else joined
