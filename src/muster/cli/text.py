"""Text for a terminal: what a model, a file or a person wrote never steers it."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

# Controls (C0, DEL, C1), halves of surrogate pairs, and what changes direction or can't be seen:
# bidirectional marks, line and paragraph separators, zero-width space, soft hyphen, fillers, byte
# order mark, tag characters.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BARS = "▁▂▃▄▅▆▇█"


def escape_text(text: str) -> str:
    """The text on one line, with an escape for each character that would steer a terminal."""
    return _UNSAFE.sub(_escape, text)


def escape_block(text: str) -> str:
    """The text with its line breaks kept and everything else escaped."""
    return "\n".join(escape_text(line) for line in text.split("\n"))


def _escape(match: re.Match[str]) -> str:
    letter = match[0]
    code = ord(letter)
    if letter in _SHORT:
        return _SHORT[letter]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, limit: int) -> str:
    """The text, its middle left out where it is longer than the limit."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """A curve of the values in so many characters; a blank where there is no number."""
    values = [value if value is not None and math.isfinite(value) else None for value in values]
    if len(values) > width:
        edges = [round(place * len(values) / width) for place in range(width + 1)]
        values = [_mean(values[a:b]) for a, b in pairwise(edges)]
    there = [value for value in values if value is not None]
    if not there:
        return ""
    low, span = min(there), max(there) - min(there)
    return "".join(" " if value is None else _bar((value - low) / span if span else 0.0) for value in values)


def _bar(height: float) -> str:
    return _BARS[min(int(height * len(_BARS)), len(_BARS) - 1)]


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def number(value: object) -> str:
    """A number in a few characters; a dash where there is none, or none that is finite."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return escape_text(str(value))
    if isinstance(value, int):
        return str(value)
    return f"{value:.3g}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.2e}"


def percent(share: float) -> str:
    """A share as whole percent."""
    return f"{100 * share:.0f}%"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as on a clock."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
