"""Text for a terminal: what a model, a file or a person wrote never steers it."""

import math
from collections.abc import Sequence
from itertools import pairwise

from muster.escaping import escape_block as escape_block
from muster.escaping import escape_text as escape_text

_BARS = "▁▂▃▄▅▆▇█"


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
    if span <= 1e-9 * max(map(abs, there)):
        # Means of equal numbers differ in their last digits; that is no curve.
        span = 0.0
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
