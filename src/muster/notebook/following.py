"""A run that goes on, shown in one place that is drawn over: a card in a notebook, a line on a terminal."""

import sys
import time
from collections.abc import Generator, Iterable
from html import escape
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from muster.escaping import escape_text
from muster.notebook.card import Card, key_numbers, state_line
from muster.notebook.panels import NamedColumns
from muster.records import StepReport
from muster.redaction import redacted
from muster.store import Line, State
from muster.store.writer import timings_line
from muster.view.curves import to_columns
from muster.view.status import Plan, status_of

EVERY_S = 0.3
"""Seconds between two drawings of a phase's progress; each step is drawn in any case."""


class Surface(Protocol):
    """A place that is drawn over."""

    def show(self, card: Card, doing: str) -> None:
        """Draws the card, and what is being done."""
        ...

    def close(self) -> None:
        """Leaves what was drawn last."""
        ...


class Page:
    """A cell of a notebook."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle = display(self._bundle("", ""), raw=True, display_id=True)

    def show(self, card: Card, doing: str) -> None:
        """Puts the card in the place of the one before."""
        line = f"<p>{escape(escape_text(doing))}</p>" if doing else ""
        if self._handle is not None:
            self._handle.update(self._bundle(card.html() + line, card.text()), raw=True)

    def close(self) -> None:
        """The card stays."""

    @staticmethod
    def _bundle(html: str, text: str) -> dict[str, str]:
        return {"text/html": html, "text/plain": text}


class Terminal:
    """The last line of a terminal; where there is none (a file, a pipe), nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False)
        if self._console.is_terminal:
            self._live.start()

    def show(self, card: Card, doing: str) -> None:
        """Puts the line in the place of the one before."""
        numbers = (f"{name} {value}" for name, value in key_numbers(card.status))
        line = " · ".join([state_line(card.status), *numbers, *([doing] if doing else [])])
        if self._live.is_started:
            self._live.update(Text(escape_text(line), no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        """The line stays."""
        self._live.stop()


def is_notebook() -> bool:
    """Whether the process is a notebook's kernel: IPython is there, and asks no terminal for its input."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ != "TerminalInteractiveShell"


def follow(
    reports: Iterable[StepReport],
    *,
    steps: int | None = None,
    name: str = "run",
    surface: Surface | None = None,
) -> Generator[StepReport]:
    """Hands on each report of a run, and shows how the run is: in a notebook as a card, else as a line.

    `steps` is how many there will be, where that is known: then the time left is shown, too.
    """
    with Following(name, steps, surface) as shown:
        yield from shown.through(reports)


class Following:
    """What is shown of a run that goes on."""

    def __init__(self, name: str, steps: int | None, surface: Surface | None = None) -> None:
        self._name, self._plan = name, Plan(steps=steps)
        self._surface = surface or (Page() if is_notebook() else Terminal())
        self._lines: list[Line] = []
        self._timings: list[Line] = []
        self._state: State = "running"
        self._notes: list[str] = []
        self._drawn = 0.0
        self._doing = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Lets the last picture stand; of a run that was left early it says so."""
        if kind is not None and kind is not GeneratorExit:
            self._state = "failed" if issubclass(kind, Exception) else "stopped"
            self._draw()
        self._surface.close()

    def through(self, reports: Iterable[StepReport]) -> Generator[StepReport]:
        """Hands on each report, once it is shown."""
        for report in reports:
            self.add(report)
            yield report
        self.end()

    def add(self, report: StepReport) -> None:
        """Takes a step in, and draws."""
        held_out = report.eval.metrics if report.eval else {}
        self._lines.append({"step": report.step, **report.metrics, **held_out})
        self._timings.append(dict(timings_line(report)))
        self._notes += [f"step {report.step}: {text}" for text in report.warnings]
        self._draw()

    def progress(self, phase: str, done: int, total: int) -> None:
        """How far a phase is."""
        self._doing = f"{phase} {done}/{total}" if total else phase
        if time.monotonic() - self._drawn >= EVERY_S:
            self._draw()

    def say(self, text: str) -> None:
        """A line about what happens before the first step and after the last."""
        self._doing = redacted(text)
        self._draw()

    def end(self) -> None:
        """The run is over."""
        self._state = "finished"
        self._doing = ""
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        status = status_of(self._lines, self._timings, self._state, self._plan, 0.0)
        columns = to_columns(self._lines, self._timings, [], 1.0) if self._lines else {}
        card = Card(self._name, status, NamedColumns(self._name, columns), self._notes[-5:])
        self._surface.show(card, self._doing)
