"""A picture on a terminal: paragraphs, tables, curves and bars, in characters."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from muster.cli.text import escape_text, number
from muster.pictures import Bars, Cell, Chart, Curve, Picture, Table

SIGNS = "●▲■◆"
STYLES = ("blue", "yellow", "green", "magenta")
"""Beside the signs, never in their place."""
HEIGHT = 11
"""Rows of a chart."""
_MAX_WIDTH, _MIN_WIDTH = 100, 24
_AXIS = 10
"""Columns left of a chart for the numbers of its axis."""
_BARS = "▁▂▃▄▅▆▇█"
_MAX_BAR, _MIN_BAR = 40, 8
_SCALE_TOLERANCE = 1e-9


def draw(picture: Picture, console: Console) -> None:
    """Prints the picture from top to bottom."""
    width = max(_MIN_WIDTH, min(console.width, _MAX_WIDTH))
    console.print(Text(escape_text(picture.title), style="bold"))
    for block in picture.blocks:
        console.print()
        match block:
            case Table():
                _print_title(block.title, console)
                console.print(_table(block))
            case Chart():
                _print_title(block.title, console)
                for line in chart_lines(block, width):
                    console.print(line, no_wrap=True, overflow="ellipsis")
            case Bars():
                _print_title(f"{block.title} ({block.value_label})", console)
                console.print(_bars(block, width))
            case str():
                console.print(Text(escape_text(block)), width=width)


def _print_title(title: str, console: Console) -> None:
    console.print(Text(escape_text(title), style="bold"))


def _table(table: Table) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False)
    for place, column in enumerate(table.columns):
        is_text = all(isinstance(row[place], str | None) for row in table.rows)
        drawn.add_column(escape_text(column), justify="left" if is_text else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(_cell(value)) for value in row))
    return drawn


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return escape_text(value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def chart_lines(chart: Chart, width: int) -> Iterator[Text]:
    """The chart as a plane of signs, or with more curves than signs as one line of heights each."""
    low, high = _span([value for curve in chart.curves for value in _scaled(curve.y, chart)])
    if len(chart.curves) > len(SIGNS):
        yield from _rows(chart, width, low, high)
        return
    columns = width - _AXIS - 1
    left, right = _span([value for curve in chart.curves for value in _scaled(curve.x, chart)])
    cells: list[list[int | None]] = [[None] * columns for _ in range(HEIGHT)]
    for place, curve in enumerate(chart.curves):
        for across, y in enumerate(_heights_at(curve, chart, left, right, columns)):
            row = cells[HEIGHT - 1 - _place(y, low, high, HEIGHT)] if y is not None else None
            # Where curves lie on each other their signs take turns.
            if row is not None and (row[across] is None or across % len(chart.curves) == place):
                row[across] = place
    for place, curve in enumerate(chart.curves):
        yield Text.assemble((SIGNS[place], STYLES[place]), f" {escape_text(curve.name)}")
    marks = {0: high, HEIGHT // 2: (low + high) / 2, HEIGHT - 1: low}
    for row, signs in enumerate(cells):
        mark = number(_unscaled(marks[row], chart)) if row in marks else ""
        line = Text(f"{mark:>{_AXIS - 1}} │")
        for sign in signs:
            line.append(*((" ", None) if sign is None else (SIGNS[sign], STYLES[sign])))
        yield line
    yield Text(" " * _AXIS + "└" + "─" * columns)
    ends = [f"{_unscaled(end, chart):.6g}" for end in (left, right)]
    label = f"{escape_text(chart.x_label)}{' (both axes logarithmic)' if chart.is_log else ''}"
    yield Text(" " * (_AXIS + 1) + ends[0] + label.center(columns - len(ends[0]) - len(ends[1])) + ends[1])


def _rows(chart: Chart, width: int, low: float, high: float) -> Iterator[Text]:
    """One line for each curve, all of one scale, with its least and greatest value."""
    names = [escape_text(curve.name) for curve in chart.curves]
    room = min(max(map(len, names)), width // 3)
    columns = max(_MIN_BAR, width - room - 22)
    xs = [x for curve in chart.curves for x in curve.x]
    heights = " to ".join(number(_unscaled(end, chart)) for end in (low, high))
    yield Text(f"{chart.x_label} {number(min(xs))} to {number(max(xs))}; heights from {heights}")
    for name, curve in zip(names, chart.curves, strict=True):
        there = [value for value in curve.y if value is not None]
        shown = name if len(name) <= room else f"{name[: room - 1]}…"
        ends = f"{number(min(there))} to {number(max(there))}" if there else "-"
        yield Text(f"{shown:<{room}}  {_heights(curve, chart, columns, low, high)}  {ends}")


def _heights(curve: Curve, chart: Chart, columns: int, low: float, high: float) -> str:
    """The curve as one character for each column."""
    left, right = _span(_scaled(curve.x, chart))
    return "".join(
        " " if y is None else _BARS[_place(y, low, high, len(_BARS))]
        for y in _heights_at(curve, chart, left, right, columns)
    )


def _heights_at(
    curve: Curve, chart: Chart, left: float, right: float, columns: int
) -> Iterator[float | None]:
    """The curve at evenly spaced columns, straight between its points; None beside it and in gaps."""
    points = [
        (x, y) for x, y in zip(_scaled(curve.x, chart), _scaled(curve.y, chart), strict=True) if x is not None
    ]
    for column in range(columns):
        at = left + (right - left) * column / max(columns - 1, 1)
        after = bisect_left(points, at - _SCALE_TOLERANCE * (right - left), key=lambda point: point[0])
        yield _between(points[max(after - 1, 0)], points[after], at) if after < len(points) else None


def _between(
    first: tuple[float, float | None], second: tuple[float, float | None], at: float
) -> float | None:
    (x1, y1), (x2, y2) = first, second
    if y1 is None or y2 is None or at < x1 - _SCALE_TOLERANCE * max(abs(x1), 1.0):
        return None
    return y2 if x1 == x2 else y1 + (y2 - y1) * (at - x1) / (x2 - x1)


def _bars(bars: Bars, width: int) -> RichTable:
    """For each label and each series a bar and its value."""
    table = RichTable(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=width // 4)
    for _ in range(3):
        table.add_column(no_wrap=True)
    top = max(
        (value for values in bars.series.values() for value in values if value is not None), default=0.0
    )
    names = max(len(name) for name in bars.series)
    room = max(_MIN_BAR, min(_MAX_BAR, width - width // 4 - names - 14))
    for place, label in enumerate(bars.labels):
        for number_of_series, (name, values) in enumerate(bars.series.items()):
            value = values[place]
            filled = round(room * max(value, 0.0) / top) if value is not None and top > 0 else 0
            table.add_row(
                Text("" if number_of_series else escape_text(label)),
                Text(escape_text(name)),
                Text(number(value)),
                Text("█" * filled, style=STYLES[number_of_series % len(STYLES)]),
            )
    return table


def _scaled(values: Sequence[float | None], chart: Chart) -> list[float | None]:
    """The values as the axis has them; None where it has no place for one."""
    there = [value if value is not None and math.isfinite(value) else None for value in values]
    if not chart.is_log:
        return there
    return [math.log10(value) if value is not None and value > 0 else None for value in there]


def _unscaled(value: float, chart: Chart) -> float:
    return 10**value if chart.is_log else value


def _span(values: Sequence[float | None]) -> tuple[float, float]:
    there = [value for value in values if value is not None]
    low, high = (min(there), max(there)) if there else (0.0, 1.0)
    return (
        (low, high) if high - low > _SCALE_TOLERANCE * max(abs(low), abs(high)) else (low - 0.5, high + 0.5)
    )


def _place(value: float, low: float, high: float, count: int) -> int:
    return min(count - 1, max(0, round((value - low) / (high - low) * (count - 1))))
