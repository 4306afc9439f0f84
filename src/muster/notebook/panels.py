"""The inspector's curves: what each draws of a run's columns, in which colours, under which words.

Their definitions are those of the page, read from its files.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from muster.errors import ConfigError
from muster.nearest import did_you_mean
from muster.store import Line

Column = Sequence[float | None]
Columns = Mapping[str, Column]
"""A run's numbers by key, each as long as `step`."""


class Look(NamedTuple):
    """How a line is told from others: by more than its colour."""

    color: str
    dash: str
    pattern: str
    """Of the area under it, where areas are stacked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One chart: which keys it draws, and what they mean."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    """Keys; `*` stands for anything."""
    stack: tuple[str, ...] = ()
    """Keys that are drawn on top of each other, instead of `lines`."""
    spread: str = ""
    """Key of what the first line may be off by, on both sides."""
    band: tuple[str, ...] = ()
    """Keys of the lower and the upper end around the first line."""
    points: bool = False
    """Only at some steps: drawn with markers, and the band as bars."""
    names: Mapping[str, str]
    """What a key is called."""
    compare: str = ""
    """The one key by which runs are compared."""
    at_least: int = 1
    """With fewer keys there is nothing to draw."""
    share: bool = False
    log: bool = False
    unit: str = ""
    range: tuple[float, ...] = ()
    formula: str = ""
    healthy: str = ""

    def name_of(self, key: str) -> str:
        """What a line of the key is called."""
        if key in self.names:
            return self.names[key]
        for pattern in (*self.lines, *self.stack):
            before, star, after = pattern.partition("*")
            if star and key.startswith(before) and key.endswith(after):
                return key[len(before) : len(key) - len(after)]
        return key


class Stroke(NamedTuple):
    """A line of a chart with what is around it."""

    name: str
    look: Look
    steps: Column
    values: Column
    low: Column = ()
    high: Column = ()
    """Ends of the band, or of the bars; empty where there is none."""


class NamedColumns(NamedTuple):
    """A run as charts see it."""

    name: str
    columns: Columns


def _constant(file: str, name: str) -> list[Any]:
    """A list that one of the page's scripts defines in strict JSON."""
    text = resources.files("muster.view").joinpath("static", file).read_text(encoding="utf-8")
    start = text.index(f"export const {name} = ") + len(f"export const {name} = ")
    return json.JSONDecoder().raw_decode(text, start)[0]


@cache
def panels() -> Mapping[str, Panel]:
    """All there are, by id, in the inspector's order."""
    return {panel.id: panel for panel in map(_panel, _constant("panels.js", "PANELS"))}


def _panel(values: Line) -> Panel:
    """The page writes `atLeast` for `at_least`, and leaves out what is the default."""
    given = {"at_least" if key == "atLeast" else key: value for key, value in values.items()}
    frozen = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return Panel(**{"names": {}, **frozen})


@cache
def _looks() -> tuple[Look, ...]:
    tables = [_constant("palette.js", name) for name in ("LIGHT", "DASHES", "PATTERNS")]
    return tuple(Look(*map(str, row)) for row in zip(*tables, strict=True))


def look_of(place: int) -> Look:
    """Colour, dash and pattern of the n-th line."""
    return _looks()[place % len(_looks())]


def chosen_panels(names: Sequence[str], runs: Sequence[NamedColumns]) -> list[Panel]:
    """The panels of these names, or metrics by their keys; without names, all that have numbers."""
    if not names:
        return [panel for panel in panels().values() if strokes_of(panel, runs)]
    keys = {key for run in runs for key in run.columns if key != "step"}
    return [_named(name, keys) for name in names]


def _named(name: str, keys: set[str]) -> Panel:
    if name in panels():
        return panels()[name]
    if name not in keys:
        raise ConfigError(
            f"{name!r} is no curve and no metric of the run.{did_you_mean(name, [*panels(), *keys])} "
            f"Curves: {', '.join(panels())}; or any key of the metrics."
        )
    return Panel(id=name, title=name, lines=(name,), names={}, formula="As the run logged it.")


def strokes_of(panel: Panel, runs: Sequence[NamedColumns], smooth: int = 1) -> list[Stroke]:
    """The lines of a panel; of several runs the one that they are compared by; none without numbers.

    `smooth` is over how many steps back a value is the mean.
    """
    if len(runs) == 1:
        keys = keys_of(panel.stack or panel.lines, runs[0].columns)
        enough = len(keys) >= panel.at_least
        return (
            [_stroke(panel, key, n, runs[0].columns, smooth) for n, key in enumerate(keys)] if enough else []
        )
    patterns = (panel.compare,) if panel.compare else panel.lines
    strokes: list[Stroke] = []
    for place, run in enumerate(runs):
        keys = keys_of(patterns, run.columns)
        for key in keys if len(keys) >= panel.at_least else ():
            stroke = _stroke(panel, key, 0 if panel.points else 1, run.columns, smooth)
            name = f"{run.name} {panel.name_of(key)}" if len(keys) > 1 else run.name
            strokes.append(stroke._replace(name=name, look=look_of(place)))
    return strokes


def is_stacked(panel: Panel, runs: Sequence[NamedColumns]) -> bool:
    """The strokes are areas on top of each other; of several runs only one line is drawn each."""
    return bool(panel.stack) and len(runs) == 1


def keys_of(patterns: Sequence[str], columns: Columns) -> list[str]:
    """The keys of the patterns that these columns have."""
    found: list[str] = []
    for pattern in patterns:
        before, star, after = pattern.partition("*")
        length = len(before) + len(after)
        if not star:
            found += [pattern] if pattern in columns else []
        else:
            found += [
                key for key in columns if key.startswith(before) and key.endswith(after) and len(key) > length
            ]
    return found


def _stroke(panel: Panel, key: str, place: int, columns: Columns, smooth: int) -> Stroke:
    values = columns[key]
    low, high = _around(panel, values, columns) if place == 0 else ((), ())
    shown = values if panel.points else smoothed(values, smooth)
    return Stroke(panel.name_of(key), look_of(place), columns["step"], shown, low, high)


def _around(panel: Panel, values: Column, columns: Columns) -> tuple[Column, Column]:
    """The ends of what is around the first line; empty where there is nothing."""
    if panel.spread in columns:
        pairs = list(zip(values, columns[panel.spread], strict=True))
        return [_sum(value, spread, -1) for value, spread in pairs], [
            _sum(value, spread, 1) for value, spread in pairs
        ]
    if len(panel.band) == 2 and all(key in columns for key in panel.band):
        return columns[panel.band[0]], columns[panel.band[1]]
    return (), ()


def _sum(value: float | None, spread: float | None, sign: int) -> float | None:
    return None if value is None or spread is None else value + sign * spread


def smoothed(values: Column, window: int) -> Column:
    """The mean of the numbers that are there among each one and those before it; gaps stay gaps."""
    if window <= 1:
        return values
    return [
        None if value is None else _mean(values[max(0, place - window + 1) : place + 1])
        for place, value in enumerate(values)
    ]


def _mean(values: Column) -> float:
    there = [value for value in values if value is not None]
    return sum(there) / len(there)


def stretches(low: Column, high: Column) -> list[range]:
    """The places of a band without its gaps: one range for each stretch of two or more."""
    found: list[range] = []
    start: int | None = None
    for place in range(len(low) + 1):
        is_there = place < len(low) and low[place] is not None and high[place] is not None
        if is_there and start is None:
            start = place
        elif not is_there and start is not None:
            found += [range(start, place)] if place - start > 1 else []
            start = None
    return found
