"""A reward for a numeric answer: the number that the completion gives, compared exactly."""

import re
from fractions import Fraction
from typing import Annotated

from annotated_types import Ge, Le

from muster.rewards.answers import after_thinking, answer_text, last_places, marked_answer, plain
from muster.rewards.numbers_in_text import Found, Percent, first_number, last_number, only_number
from muster.rewards.standing_alone import alone, is_calculated_with

_UNIT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{[^{}\d]*\}(?:\s*\^\s*\{?\d\}?)?")
_PHRASE = re.compile(
    r"(?<!\w)(?:answer|Answer|ANSWER)(?:\s{1,9}(?:is|IS)\b|\s{0,9}[:=])(?:[\s:*$_`(]|\\[(\[]){0,20}"
)
_MARKUP = re.compile(r"(?:[\s*_$`(]|\\[(\[]){0,20}")
_LEADING_SIGN = re.compile(r"(?:(\+)|[-\u2212]|(?:minus|negative)\b)[\s($]*(?=[\d.\\])")
_MAX_PHRASE_NUMBER = 400


def number(
    completion: str,
    answer: object,
    *,
    strict: bool = False,
    percent: Percent = "unit",
    decimal_comma: bool = False,
    tolerance: Annotated[float, Ge(0), Le(1)] = 0.0,
) -> float | None:
    r"""1 where the completion's number equals the answer's, else 0; None where the row has no answer.

    The completion's number is that of its last marked answer (`\boxed{}`, `<answer>`, `####`). With
    `strict` that has to be there and hold exactly one number. Without, where nothing is marked, it is
    the one after the last "answer is" or "answer:", and else the last in the text. Thinking isn't read.
    A number that is a part of something larger (48 + 24, 3-5, \sqrt{3}, "3 or 4") is no answer.
    Numbers are compared as exact fractions, or within `tolerance`, a share of the answer. A percent sign
    is a unit (18% is 18), or a `hundredth` (18% is 0.18). With `decimal_comma`, 1.234,5 is 1234.5.
    """
    reference = _reference(answer, percent, decimal_comma)
    if reference is None:
        return None
    found = _given(_points(after_thinking(completion), decimal_comma), strict, percent)
    if found is None or found.value is None:
        return 0.0
    return float(abs(found.value - reference) <= Fraction(tolerance) * abs(reference))


def _reference(answer: object, percent: Percent, decimal_comma: bool) -> Fraction | None:
    """The number of the data's answer, which may be a whole worked solution; None for no answer."""
    text = answer_text(answer)
    if not text:
        return None
    # A number of the file is written with a point, whatever the texts do.
    found = _given(_points(text, decimal_comma and isinstance(answer, str)), False, percent)
    if found is None or found.value is None:
        shown = text if len(text) <= 60 else text[:60] + "..."
        raise ValueError(
            f"column `answer` holds {shown!r}, in which no number stands alone; a range, a root or a "
            "multiple is none. Write the value as one number"
        )
    return found.value


def _given(text: str, strict: bool, percent: Percent) -> Found | None:
    """The number that the text gives as its answer."""
    marked = marked_answer(text)
    if marked is not None:
        content = _signed(plain(_UNIT.sub(" ", marked)))
        return alone(content, only_number(content, percent) if strict else last_number(content, percent))
    if strict:
        return None
    return _after_phrase(text, percent) or alone(text, last_number(text, percent))


def _signed(text: str) -> str:
    """The text with the sign that it starts with right before the number."""
    sign = _LEADING_SIGN.match(text)
    return text if sign is None else (sign[1] or "-") + text[sign.end() :]


def _after_phrase(text: str, percent: Percent) -> Found | None:
    """The number right behind the last `answer is`; None where something else stands there."""
    for place in last_places(text, "answer", "Answer", "ANSWER"):
        phrase = _PHRASE.match(text, place)
        if phrase is not None:
            line = text[phrase.end() : phrase.end() + _MAX_PHRASE_NUMBER].partition("\n")[0]
            # At the start of another line it would be the dash of a list.
            return _result(line if "\n" in phrase[0] else _signed(line), percent)
    return None


def _result(line: str, percent: Percent) -> Found | None:
    """The number that the line starts with; of a calculation, what it comes to."""
    found = first_number(line, percent)
    while found is not None and is_calculated_with(line, found):
        line = _signed(_MARKUP.sub("", line[found.end :].partition("=")[2], count=1))
        found = first_number(line, percent) or Found(None, 0, 0)
    return found and alone(line, found)


def _points(text: str, decimal_comma: bool) -> str:
    """The text with decimal points, where it was written with decimal commas."""
    return text.translate({ord(","): ".", ord("."): ","}) if decimal_comma else text
