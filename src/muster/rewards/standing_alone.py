r"""Whether a number in a text is an answer, or a part of something larger that has another value.

A part:  48 + 24   10-3   3–5   2**10   5²   \sqrt{3}   \frac{\pi}{4}   2\pi   3x   3:30   3 or 4
"""

import re

from muster.rewards.numbers_in_text import Found

_AROUND = 60
"""Characters before and behind a number that are looked at."""
_MINUS = r"\-\u2012\u2013\u2212\ufe63\uff0d"
# Stars with a blank on one side alone are the ends of what is bold or italic.
_STARS = r"(?:(?<![ *])\*{1,2}(?![ *])|(?<=[ ])\*{1,2}(?=[ ]))"
_OPERATOR = rf"(?:{_STARS}|[+/\u00d7\u00f7{_MINUS}]|\\(?:times|cdot|div)|\b(?:plus|minus|times)\b)"
_OPENED = r"[($\\{]{0,4}"
_CALCULATION = re.compile(rf"[ ]?{_OPERATOR}[ ]?{_OPENED}[\d\u221a\u03c0]")
_BEFORE = re.compile(
    rf"""(?: [\d)}}\]%][ ]?{_OPERATOR}[ ]?{_OPENED}
           | \d:
           | \d\s+or\s+{_OPENED}
           | \u221a[ ]?\(?
           | \\(?:sqrt|log|ln|sin|cos|tan|exp|overline|[dt]?frac)(?:_\{{?\w+\}}?)?(?:\[\w\])?[ ]?[({{]?
           | frac.*\}}\{{
         )$""",
    re.VERBOSE,
)
_BEHIND = re.compile(
    rf"""{_CALCULATION.pattern}
       | :\d
       | \s+or\s+\S{{0,2}}\d
       | [ ]?(?:\u221a|\u03c0|\\sqrt|\\pi\b)
       | [\u00b2\u00b3\u00b9\u2070-\u2079]
       | [xni](?![A-Za-z])
    """,
    re.VERBOSE,
)
_MINUS_APART = re.compile(
    rf"(?:(?:=|\bis)[ ]?[$(]?[{_MINUS}][ ]?(?:\\left)?[$(]{{0,2}}|\b(?:minus|negative)[ ][$(]{{0,2}})$"
)


def alone(text: str, found: Found | None) -> Found | None:
    """The number as an answer: of no value where it is a part, and negative where its minus stands apart."""
    if found is None or found.value is None:
        return found
    before = text[max(0, found.start - _AROUND) : found.start]
    if _BEFORE.search(before) or _BEHIND.match(text[found.end : found.end + _AROUND]):
        return found._replace(value=None)
    return found._replace(value=-found.value) if _MINUS_APART.search(before) else found


def is_calculated_with(text: str, found: Found) -> bool:
    """An operator and another number follow."""
    return _CALCULATION.match(text[found.end : found.end + _AROUND]) is not None
