"""A run on one card of HTML: how it is, its key numbers, small curves, findings; no script in it."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from muster.escaping import escape_text
from muster.notebook.drawing import Drawing, draw, short
from muster.notebook.panels import NamedColumns, Panel, panels, strokes_of
from muster.store import Line

CURVES = (
    "reward",
    "held-out",
    "groups",
    "loss",
    "held-out-loss",
    "accuracy",
    "length",
    "entropy",
    "gradient",
)
"""On the card, where the run has them; at most four."""
MAX_CURVES = 4


class Card(NamedTuple):
    """What a card says."""

    name: str
    status: Mapping[str, object]
    run: NamedColumns
    notes: Sequence[str] = ()
    """Lines below it: findings, what could not be read."""

    def html(self) -> str:
        """The card as HTML, every text in it escaped."""
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(value)}</td></tr>'
            for name, value in key_numbers(self.status)
        )
        notes = "".join(f"<li>{escape(escape_text(note))}</li>" for note in self.notes)
        return (
            f"<div><p><b>{escape(escape_text(self.name))}</b> {escape(state_line(self.status))}</p>"
            f"<table><tbody>{rows}</tbody></table>{self._curves()}"
            f"{f'<ul>{notes}</ul>' if notes else ''}</div>"
        )

    def _curves(self) -> str:
        """The curves as SVG; empty where there are none."""
        drawing = self.drawing() if self.run.columns else None
        return drawing.svg if drawing is not None and self._panels() else ""

    def text(self) -> str:
        """The same in lines of text."""
        numbers = [f"  {name}: {value}" for name, value in key_numbers(self.status)]
        notes = [f"  - {escape_text(note)}" for note in self.notes]
        return "\n".join([f"{escape_text(self.name)}: {state_line(self.status)}", *numbers, *notes])

    def drawing(self) -> Drawing:
        """The curves of the card."""
        return draw(self._panels(), [self.run])

    def _panels(self) -> list[Panel]:
        there = [panels()[name] for name in CURVES if strokes_of(panels()[name], [self.run])]
        return there[:MAX_CURVES]


def state_line(status: Mapping[str, object]) -> str:
    """How far the run is, and how it is."""
    steps = status.get("steps")
    far = f"step {short(_number(status, 'step'))}" + (f" of {steps}" if steps else "")
    left = _number(status, "seconds_left")
    return f"{status.get('state', 'unknown')}, {far}" + (f", {clock(left)} left" if left is not None else "")


def key_numbers(status: Mapping[str, object]) -> list[tuple[str, str]]:
    """The numbers that a person looks for first, each with its name."""
    rows: list[tuple[str, str]] = []
    if (reward := _number(status, "reward")) is not None:
        change, over = _number(status, "change"), status.get("change_steps")
        moved = f" ({change:+.3g} between the first and last {over} steps)" if change is not None else ""
        rows.append(("reward", f"{short(reward)}{moved}"))
    if (loss := _number(status, "loss")) is not None:
        rows.append(("loss", short(loss)))
    evaluated = status.get("held_out")
    for line in evaluated if isinstance(evaluated, list) else ():
        rows.append((f"held-out reward at step {short(line.get('step'))}", _interval(line)))
    if (speed := _number(status, "tokens_per_second")) is not None:
        rows.append(("tokens per second", short(round(speed))))
    return rows


def _interval(line: Line) -> str:
    low, high = line.get("low"), line.get("high")
    bounds = "" if low is None or high is None else f" ({short(low)} to {short(high)})"
    return f"{short(line.get('mean'))}{bounds}"


def _number(status: Mapping[str, object], name: str) -> float | None:
    value = status.get(name)
    return float(value) if isinstance(value, int | float) else None


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
