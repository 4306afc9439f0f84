"""The inspector's curves as a plotly figure, and what a notebook shows where nothing draws plotly's."""

import json
import textwrap
from collections.abc import Sequence

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from muster.escaping import escape_text
from muster.notebook.drawing import Drawing
from muster.notebook.panels import NamedColumns, Panel, Stroke, is_stacked, stretches, strokes_of

COLUMNS = 2
PANEL_PIXELS = 260
_PLOTLY = "application/vnd.plotly.v1+json"
_WRAP = 60


class RunFigure(go.Figure):
    """A plotly figure that a viewer without plotly shows as a drawing.

    plotly's own display puts its script of several megabytes into a notebook; this one puts the figure's
    numbers there, which JupyterLab and VS Code draw, and beside them a picture for every other viewer.
    """

    # IPython would ask these, too: plotly's write to the page itself, and name a script elsewhere.
    _ipython_display_ = None  # pyright: ignore[reportAssignmentType]
    _repr_html_ = None  # pyright: ignore[reportAssignmentType]
    _drawing: Drawing | None = None

    def drawn_as(self, drawing: Drawing) -> "RunFigure":
        """The figure itself, with the picture that stands for it."""
        self._drawing = drawing
        return self

    def _repr_mimebundle_(self, *_: object, **__: object) -> dict[str, object]:
        """The figure, and the drawing that was made with it."""
        pictures = self._drawing.bundle() if self._drawing else {}
        return {_PLOTLY: json.loads(str(self.to_json())), **pictures}


def figure_of(
    panels: Sequence[Panel], runs: Sequence[NamedColumns], drawing: Drawing, smooth: int
) -> RunFigure:
    """The panels as one figure, two beside each other; formula and what is healthy lie under each title."""
    columns = min(COLUMNS, max(len(panels), 1))
    rows = max(-(-len(panels) // columns), 1)
    titles = [_title(panel, runs) for panel in panels]
    grid = make_subplots(rows=rows, cols=columns, subplot_titles=titles, vertical_spacing=0.32 / rows / 1.5)
    figure = RunFigure(grid)
    for place, panel in enumerate(panels):
        row, column = place // columns + 1, place % columns + 1
        for trace in _traces(panel, runs, strokes_of(panel, runs, smooth), has_legend=place == 0):
            figure.add_trace(trace, row=row, col=column)
        _set_axes(figure, panel, row, column)
        figure.layout.annotations[place].hovertext = _wrapped(f"{panel.formula} {panel.healthy}")
    figure.update_layout(
        template="none",
        height=rows * PANEL_PIXELS + 60,
        margin={"l": 50, "r": 10, "t": 40, "b": 40},
        showlegend=len(runs) > 1,
        legend={"orientation": "h", "y": -0.08},
        font={"size": 12},
    )
    return figure.drawn_as(drawing)


def _title(panel: Panel, runs: Sequence[NamedColumns]) -> str:
    """The panel's title; where one run has several lines, their names in their colours."""
    strokes = strokes_of(panel, runs) if len(runs) == 1 else []
    names = [
        f'<span style="color:{stroke.look.color}">{_plain(stroke.name)}</span>' for stroke in strokes[:6]
    ]
    lines = f" <sub>{', '.join(names)}</sub>" if len(names) > 1 else ""
    return f"<b>{_plain(panel.title)}</b>{lines}"


def _set_axes(figure: RunFigure, panel: Panel, row: int, column: int) -> None:
    figure.update_xaxes(tickformat="d", showgrid=False, row=row, col=column)
    figure.update_yaxes(
        gridcolor="rgba(128,128,128,0.25)",
        zeroline=False,
        type="log" if panel.log else "linear",
        tickformat=",.3~%" if panel.share else None,
        ticksuffix=f" {panel.unit}" if panel.unit else "",
        range=list(panel.range) or None,
        row=row,
        col=column,
    )


def _traces(
    panel: Panel, runs: Sequence[NamedColumns], strokes: Sequence[Stroke], *, has_legend: bool
) -> list[go.Scatter]:
    if is_stacked(panel, runs):
        return [_area(stroke, _not_empty(strokes)) for stroke in strokes]
    bands = [band for stroke in strokes if not panel.points for band in _bands(stroke)]
    return [*bands, *(_line(panel, stroke, has_legend=has_legend) for stroke in strokes)]


def _line(panel: Panel, stroke: Stroke, *, has_legend: bool) -> go.Scatter:
    name = _plain(stroke.name)
    places = list(range(len(stroke.steps)))
    if panel.points:
        places = [place for place in places if stroke.values[place] is not None]
    return go.Scatter(
        x=[stroke.steps[place] for place in places],
        y=[stroke.values[place] for place in places],
        name=name,
        mode="lines+markers" if panel.points or len(places) < 3 else "lines",
        line={"color": stroke.look.color, "dash": stroke.look.dash, "width": 1.8},
        error_y=_bars(stroke, places) if panel.points else None,
        showlegend=has_legend,
        legendgroup=name,
    )


def _bars(stroke: Stroke, places: Sequence[int]) -> dict[str, object] | None:
    if not stroke.low:
        return None
    middle = [stroke.values[place] or 0.0 for place in places]
    ends = [[column[place] for place in places] for column in (stroke.low, stroke.high)]
    down, up = (
        [0.0 if end is None else abs(end - value) for end, value in zip(column, middle)] for column in ends
    )
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 3}


def _bands(stroke: Stroke) -> list[go.Scatter]:
    """The band around a line: one filled shape for each stretch without gaps."""
    return [
        go.Scatter(
            x=[stroke.steps[place] for place in (*places, *reversed(places))],
            y=[*(stroke.high[place] for place in places), *(stroke.low[place] for place in reversed(places))],
            fill="toself",
            fillcolor=faint(stroke.look.color, 0.14),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
        )
        for places in stretches(stroke.low, stroke.high)
    ]


def _not_empty(strokes: Sequence[Stroke]) -> list[int]:
    """Places at which some layer has a number: plotly takes what is missing in a stack for 0."""
    places = range(len(strokes[0].steps) if strokes else 0)
    return [place for place in places if any(stroke.values[place] is not None for stroke in strokes)]


def _area(stroke: Stroke, places: Sequence[int]) -> go.Scatter:
    look = stroke.look
    return go.Scatter(
        x=[stroke.steps[place] for place in places],
        y=[stroke.values[place] for place in places],
        name=_plain(stroke.name),
        mode="lines",
        stackgroup="all",
        line={"width": 0.8, "color": look.color},
        fillcolor=faint(look.color, 0.45),
        fillpattern={"shape": look.pattern, "size": 6, "solidity": 0.25, "fgcolor": look.color},
        showlegend=False,
    )


def faint(color: str, share: float) -> str:
    """The colour with some of it seen through."""
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    red, green, blue = (int(digits[place : place + 2], 16) for place in (0, 2, 4))
    return f"rgba({red},{green},{blue},{share})"


def _plain(text: str) -> str:
    """The text as plotly shows it letter by letter: it takes some tags for markup."""
    return escape_text(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _wrapped(text: str) -> str:
    return "<br>".join(map(_plain, textwrap.wrap(text, _WRAP)))
