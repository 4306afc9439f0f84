"""The inspector's curves as one static picture: SVG that any viewer shows, without a script."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from muster.escaping import escape_text
from muster.notebook.panels import Column, NamedColumns, Panel, Stroke, is_stacked, stretches, strokes_of

WIDTH, HEIGHT = 350, 176
"""Of one chart, in pixels."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 24, 32
MAX_POINTS = 240
"""Of a line: of a longer one the lowest and the highest of each stretch are drawn."""
_DASHES = {"solid": "", "dash": "6,3", "dot": "2,3", "dashdot": "6,3,2,3", "longdash": "9,4",
           "longdashdot": "9,4,2,4", "5px,2px": "5,2", "2px,6px": "2,6"}  # fmt: skip
_INK, _GRID = "#555", "#ddd"


class Drawing(NamedTuple):
    """A picture, and what it shows in words."""

    svg: str
    text: str

    def bundle(self) -> dict[str, object]:
        """By their types, as a notebook takes them."""
        return {"image/svg+xml": self.svg, "text/plain": self.text}

    def _repr_mimebundle_(self, *_: object, **__: object) -> dict[str, object]:
        return self.bundle()


class _Scale(NamedTuple):
    """Where steps and values lie in a chart."""

    first: float
    last: float
    low: float
    high: float
    is_log: bool

    def x(self, step: float) -> float:
        inside = WIDTH - _LEFT - _RIGHT
        span = self.last - self.first
        return _LEFT + (inside * (step - self.first) / span if span else inside / 2)

    def y(self, value: float) -> float:
        inside = HEIGHT - _TOP - _BOTTOM
        low, high, value = (self._log(n) for n in (self.low, self.high, value))
        return HEIGHT - _BOTTOM - (inside * (value - low) / (high - low) if high > low else inside / 2)

    def _log(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.is_log else value


def draw(
    panels: Sequence[Panel], runs: Sequence[NamedColumns], smooth: int = 1, num_columns: int = 2
) -> Drawing:
    """The panels beside and below each other, and a line of text for each."""
    charts = [(panel, strokes_of(panel, runs, smooth), is_stacked(panel, runs)) for panel in panels]
    columns = max(1, min(num_columns, len(charts)))
    rows = -(-len(charts) // columns)
    width, height = columns * WIDTH, rows * HEIGHT
    parts = [
        f'<g transform="translate({place % columns * WIDTH},{place // columns * HEIGHT})">'
        f"{''.join(_chart(panel, strokes, stacked=stacked))}</g>"
        for place, (panel, strokes, stacked) in enumerate(charts)
    ]
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="{_INK}" role="img">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>'
    )
    said = [
        f"{panel.title}: {'; '.join(map(_told, strokes)) or 'no numbers'}" for panel, strokes, _ in charts
    ]
    return Drawing(svg, "\n".join(said))


def _told(stroke: Stroke) -> str:
    there = [value for value in stroke.values if value is not None]
    ends = f"{short(there[0])} to {short(there[-1])}" if there else "no numbers"
    return f"{escape_text(stroke.name)} {ends}"


def short(value: float | None) -> str:
    """A number in a few characters; a dash for none."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e5:
        return str(int(value))
    return f"{value:.3g}"


def _chart(panel: Panel, strokes: Sequence[Stroke], *, stacked: bool) -> Iterator[str]:
    yield f"<title>{_text(panel.title)}: {_text(panel.formula)} {_text(panel.healthy)}</title>"
    title = _text(panel.title)
    yield f'<text x="{_LEFT}" y="14" font-size="12" font-weight="bold" fill="#222">{title}</text>'
    layers = _stacked(strokes) if stacked else [(stroke, stroke.low, stroke.high) for stroke in strokes]
    scale = _scale(panel, layers, stacked=stacked)
    if scale is None:
        yield f'<text x="{_LEFT}" y="{HEIGHT / 2}">no numbers</text>'
        return
    yield from _axes(panel, scale)
    for stroke, low, high in layers:
        if panel.points:
            yield from _bars(stroke, scale)
        else:
            yield from _band(stroke, low, high, scale, 0.45 if stacked else 0.14)
    for stroke, _, high in layers:
        yield from _line(stroke, high if stacked else stroke.values, scale, has_points=panel.points)
    if len(strokes) > 1:
        yield from _legend(strokes)


def _stacked(strokes: Sequence[Stroke]) -> list[tuple[Stroke, Column, Column]]:
    """Each layer between the top of the one below it and its own; a step without any number is a gap."""
    below: list[float] = [0.0] * (len(strokes[0].steps) if strokes else 0)
    gaps = [all(stroke.values[place] is None for stroke in strokes) for place in range(len(below))]
    layers: list[tuple[Stroke, Column, Column]] = []
    for stroke in strokes:
        top = [base + (value or 0.0) for base, value in zip(below, stroke.values, strict=True)]
        ends = [[None if gap else end for gap, end in zip(gaps, some, strict=True)] for some in (below, top)]
        layers.append((stroke, ends[0], ends[1]))
        below = top
    return layers


def _scale(panel: Panel, layers: Sequence[tuple[Stroke, Column, Column]], *, stacked: bool) -> _Scale | None:
    """From the first step to the last, and from the lowest number to the highest; None without numbers."""
    columns = [some for stroke, low, high in layers for some in (() if stacked else stroke.values, low, high)]
    numbers = [value for some in columns for value in some if value is not None]
    steps = [step for stroke, _, _ in layers for step in stroke.steps if step is not None]
    is_log = panel.log and any(value > 0 for value in numbers)
    if is_log:
        numbers = [value for value in numbers if value > 0]
    if not numbers or not steps:
        return None
    low, high = (panel.range[0], panel.range[1]) if panel.range else (min(numbers), max(numbers))
    if low == high:
        room = abs(low) * 0.1 or 0.05
        low, high = low - (0 if is_log else room), high + room
    return _Scale(min(steps), max(steps), low, high, is_log)


def _axes(panel: Panel, scale: _Scale) -> Iterator[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    middle = math.sqrt(scale.low * scale.high) if scale.is_log else (scale.low + scale.high) / 2
    for value in (scale.low, middle, scale.high):
        y = scale.y(value)
        shown = f"{100 * value:.3g}%" if panel.share else short(value)
        yield f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>'
        yield f'<text x="{_LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>'
    yield f'<text x="{_LEFT}" y="{bottom + 13}">{short(scale.first)}</text>'
    if scale.last > scale.first:
        yield f'<text x="{right}" y="{bottom + 13}" text-anchor="end">step {short(scale.last)}</text>'


def _band(stroke: Stroke, low: Column, high: Column, scale: _Scale, share: float) -> Iterator[str]:
    for whole in stretches(low, high):
        places = [whole[place] for place in thinned(high[whole.start : whole.stop])]
        points = [*_points(stroke, high, places, scale), *reversed(_points(stroke, low, places, scale))]
        yield f'<polygon points="{" ".join(points)}" fill="{stroke.look.color}" fill-opacity="{share}"/>'


def _bars(stroke: Stroke, scale: _Scale) -> Iterator[str]:
    """From the lower end to the upper one, at each step that has both."""
    for step, low, high in zip(stroke.steps, stroke.low, stroke.high):
        if step is not None and low is not None and high is not None:
            x, ends = scale.x(step), (scale.y(low), scale.y(high))
            yield (
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}" '
                f'stroke="{stroke.look.color}"/>'
            )


def _line(stroke: Stroke, values: Column, scale: _Scale, *, has_points: bool) -> Iterator[str]:
    dash = f' stroke-dasharray="{_DASHES[stroke.look.dash]}"' if _DASHES[stroke.look.dash] else ""
    style = f'fill="none" stroke="{stroke.look.color}" stroke-width="1.6"{dash}'
    there = [place for place, value in enumerate(values) if value is not None]
    runs = [there] if has_points else _unbroken(there)
    for places in runs:
        kept = [places[place] for place in thinned([values[place] for place in places])]
        yield f'<polyline points="{" ".join(_points(stroke, values, kept, scale))}" {style}/>'
        if has_points or len(places) == 1:
            for point in _points(stroke, values, kept, scale):
                x, _, y = point.partition(",")
                yield f'<circle cx="{x}" cy="{y}" r="2.6" fill="{stroke.look.color}"/>'


def _unbroken(places: Sequence[int]) -> list[list[int]]:
    """The places without a gap between them, together."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _points(stroke: Stroke, values: Column, places: Sequence[int], scale: _Scale) -> list[str]:
    return [
        f"{scale.x(step):.1f},{scale.y(value):.1f}"
        for place in places
        if (step := stroke.steps[place]) is not None and (value := values[place]) is not None
    ]


def thinned(values: Column) -> list[int]:
    """Places to draw of a column: of each stretch of a long one, the first, the lowest and the highest."""
    if len(values) <= MAX_POINTS:
        return list(range(len(values)))
    size = -(-3 * len(values) // MAX_POINTS)
    kept = {len(values) - 1}
    for start in range(0, len(values), size):
        there = [n for n in range(start, min(start + size, len(values))) if values[n] is not None]
        kept |= {start, *(pick(there, key=lambda n: values[n] or 0.0) for pick in (min, max) if there)}
    return sorted(kept)


def _legend(strokes: Sequence[Stroke]) -> Iterator[str]:
    x, y = _LEFT, HEIGHT - 6
    for stroke in strokes[:6]:
        name = escape_text(stroke.name)
        name = name if len(name) <= 24 else f"{name[:23]}…"
        dash = _DASHES[stroke.look.dash]
        yield (
            f'<line x1="{x}" x2="{x + 16}" y1="{y - 4}" y2="{y - 4}" stroke="{stroke.look.color}" '
            f'stroke-width="2" stroke-dasharray="{dash}"/><text x="{x + 20}" y="{y}">{escape(name)}</text>'
        )
        x += 28 + round(5.2 * len(name))


def _text(text: str) -> str:
    return escape(escape_text(text))
