r"""Numbers as people and models write them, read exactly, without evaluating anything.

Read:   -3  +7  −3 (U+2212)  .5  18.0  130,000  130{,}000  1 000 000  1'234  1_000  $29.00  -$5  29%
        3e8  3 × 10^8  10^{-3}  3/4  \frac{3}{4}  2 1/2  digits of any script
Not read: words (forty-two), roman numerals, 0x1F, powers other than of ten (2^10, cm^2), x2, ±3,
        dates and versions (12/05/2024, 1.2.3), infinities, NaN
"""

import re
from collections import deque
from fractions import Fraction
from typing import Literal, NamedTuple

MAX_DIGITS = 300
"""A longer numeral, or a power of ten beyond it, is a number that equals none."""

Percent = Literal["unit", "hundredth"]

_DIGITS = "0123456789" + "".join(
    chr(zero + digit) for zero in (0x660, 0x6F0, 0x966, 0xFF10) for digit in range(10)
)
"""ASCII, the two Arabic rows, Devanagari, full width."""
_WINDOWS = (1_500, 10_000)
"""Characters before the last digit in which the last number is looked for: mostly the first will do."""
_LONGEST = 4 * MAX_DIGITS // 3
"""Characters of the longest numeral that has a value, its separators included."""


# A run of digits has exactly one way to match (possessive), so that a million digits are read once.
_GROUPED = (
    r"\d{1,3}(?P<comma>,|\{,\}|\\,|[ \u00a0\u2009\u202f'\u2019_])\d{3}(?:(?P=comma)\d{3})*+(?![\d_]|,\d)"
)
_DECIMAL = rf"(?:(?:{_GROUPED}|\d++)(?:\.\d++)?|(?<!\.)\.\d++)(?!\.\d|\^|/\d)"
_SIGN = r"(?:(?<![\w)\]}.\-])[+\-\u2012\u2013\u2212\ufe63\uff0d])?"
_CURRENCY = r"(?:(?:\\?\$|[\u00a3\u00a5\u20a0-\u20bf])[ ]?(?P<inner>[+\-\u2212]?))?"
_TEN = r"10\^(?:\{(?P<@_braced>[+\-\u2212]?\d++)\}|(?P<@>[+\-\u2212]?\d++))"
_NUMBER = re.compile(
    rf"""
    (?<![A-Za-z_\u00b1\d^])(?<!\d[./])(?<!\^\{{)(?!0[xXbBoO][0-9a-fA-F])
    (?P<sign>{_SIGN}){_CURRENCY}
    (?:
        (?:(?P<whole>\d++)[ ]?)?
        (?: \\[dt]?frac\s?(?:\{{\s?(?P<top>[+\-\u2212]?\d++)\s?\}}\{{\s?(?P<bottom>\d++)\s?\}}
                           |(?P<short_top>\d)(?P<short_bottom>\d))
          | (?P<slash_top>(?<![\d/])\d++)[ ]?/[ ]?(?P<slash_bottom>\d++)(?![/\d]|\.\d) )
      | {_TEN.replace("@", "power")}
      | (?P<decimal>{_DECIMAL})
        (?: [eE](?P<exponent>[+\-\u2212]?\d++)(?![\w.])
          | \s?(?:\u00d7|\\times|\\cdot|\*|[xX](?=\s?10\^))\s?{_TEN.replace("@", "scale")} )?
    )
    (?P<percent>\s?\\?%)?
    """,
    re.VERBOSE,
)
_MINUS = re.compile("[-\u2012\u2013\u2212\ufe63\uff0d]")


class Found(NamedTuple):
    """A number that a text holds."""

    value: Fraction | None
    """None where it is written like a number but has no value: nothing below the line, too many digits."""
    start: int
    """Where in the text it begins, with its sign."""
    end: int
    """Where it has ended."""


def last_number(text: str, percent: Percent = "unit") -> Found | None:
    """The number that stands last; None where there is none in the 10,000 characters up to the last digit."""
    end = 1 + max(text.rfind(digit) for digit in _DIGITS)
    match: re.Match[str] | None = None
    for size in _WINDOWS:
        start = max(0, end - size)
        found = deque(_NUMBER.finditer(text, start, end + 5), maxlen=1)
        match = found[0] if found else None
        # Near its edge the window may have cut a number in two.
        if start == 0 or (match is not None and match.start() > start + _LONGEST):
            break
    return None if match is None else _found(match, percent)


def first_number(text: str, percent: Percent = "unit") -> Found | None:
    """The number that the text starts with; None where it starts with something else."""
    match = _NUMBER.match(text)
    return None if match is None else _found(match, percent)


def only_number(text: str, percent: Percent = "unit") -> Found | None:
    """The one number in a short text; None where there are several or none."""
    if len(text) > _WINDOWS[0]:
        return None
    matches = list(_NUMBER.finditer(text))
    return _found(matches[0], percent) if len(matches) == 1 else None


def _found(match: re.Match[str], percent: Percent) -> Found:
    return Found(_value(match, percent), match.start(), match.end())


def _value(match: re.Match[str], percent: Percent) -> Fraction | None:
    """What the numeral stands for; None where that is no number, or one too long to be an answer."""
    part = match.groupdict()
    top = part["top"] or part["short_top"] or part["slash_top"]
    bottom = part["bottom"] or part["short_bottom"] or part["slash_bottom"]
    if any(digits is not None and len(digits) > MAX_DIGITS for digits in part.values()):
        return None
    if top is not None:
        value = _ratio(part["whole"], top, bottom or "")
    elif part["decimal"] is None:
        value = _power_of_ten(part["power_braced"] or part["power"])
    else:
        scale = _power_of_ten(part["exponent"] or part["scale_braced"] or part["scale"] or "0")
        value = None if scale is None else _decimal(part["decimal"]) * scale
    if value is None:
        return None
    if _is_minus(part["sign"]) != _is_minus(part["inner"] or ""):
        value = -value
    return value / 100 if percent == "hundredth" and part["percent"] else value


def _ratio(whole: str | None, top: str, bottom: str) -> Fraction | None:
    """A fraction, or a mixed number (2 1/2): a whole number before a fraction between 0 and 1."""
    if int(bottom) == 0:
        return None
    value = Fraction(_integer(top), int(bottom))
    return value + int(whole) if whole is not None and 0 < value < 1 else value


def _decimal(digits: str) -> Fraction:
    """The value of plain or grouped digits."""
    whole, _, decimals = re.sub(r"[^\d.]", "", digits).partition(".")
    return Fraction(int(whole + decimals or "0"), 10 ** len(decimals))


def _power_of_ten(exponent: str) -> Fraction | None:
    size = _integer(exponent)
    return None if abs(size) > MAX_DIGITS else Fraction(10) ** size


def _integer(text: str) -> int:
    digits = text.lstrip("+-\u2212")
    return -int(digits) if _is_minus(text[:1]) else int(digits)


def _is_minus(sign: str) -> bool:
    return _MINUS.match(sign) is not None
