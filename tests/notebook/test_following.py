"""What is shown of a run that goes on: one place that is drawn over, in a notebook or on a terminal."""

import io
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from rich.console import Console

import view_runs
from muster.notebook import follow, is_notebook
from muster.notebook.card import Card
from muster.notebook.figures import RunFigure
from muster.notebook.following import Following, Page, Terminal
from muster.records import StepReport


class Slate:
    """A surface that remembers what was drawn on it."""

    def __init__(self) -> None:
        self.cards: list[tuple[Card, str]] = []
        self.is_closed = False

    def show(self, card: Card, doing: str) -> None:
        self.cards.append((card, doing))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def shell() -> Generator[InteractiveShell]:
    """IPython, as a notebook's kernel has it: without a terminal."""
    shell = InteractiveShell.instance()
    yield shell
    InteractiveShell.clear_instance()


def reports(count: int = 3) -> list[StepReport]:
    return list(view_runs.reports(count))


def test_each_report_is_handed_on_once_it_is_shown():
    slate, given = Slate(), reports()
    assert list(follow(given, steps=3, name="toy", surface=slate)) == given
    steps = [card.status["step"] for card, _ in slate.cards]
    assert steps == [0, 1, 2, 3, 3]
    assert [card.status["state"] for card, _ in slate.cards] == ["running"] * 4 + ["finished"]
    assert slate.is_closed
    last = slate.cards[-1][0]
    assert last.run.columns["reward"] == [None, *(given[step].metrics["reward"] for step in (1, 2, 3))]
    assert last.notes == ["step 2: slot 1 had no signal"]
    # steps of 5 s each; two of three are left after the first
    assert slate.cards[1][0].status["seconds_left"] == pytest.approx(10.0)


def test_a_follower_that_stops_asking_leaves_the_run_as_it_was_drawn():
    slate = Slate()
    following = follow(reports(), surface=slate)
    next(following)
    following.close()
    assert slate.is_closed
    assert slate.cards[-1][0].status["state"] == "running"


def test_a_run_that_fails_is_not_shown_as_finished():
    slate = Slate()

    def failing() -> Generator[StepReport]:
        yield from reports(1)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(follow(failing(), surface=slate))
    assert (slate.is_closed, slate.cards[-1][0].status["state"]) == (True, "failed")


def test_a_phase_is_drawn_now_and_then(monkeypatch: pytest.MonkeyPatch):
    slate = Slate()
    following = Following("toy", 3, slate)
    following.say("loading with api_key=q8f3h2k1m5n7")
    for done in range(100):
        following.progress("sample", done, 100)
    assert len(slate.cards) < 50
    assert slate.cards[0][1] == "loading with api_key=***"


def test_a_cell_is_drawn_over_and_nothing_in_it_is_markup(shell: InteractiveShell):
    assert is_notebook()
    hostile = replace(reports(1)[1], warnings=(view_runs.HOSTILE[0], view_runs.HOSTILE[4]))
    with capture_output() as captured:
        list(follow([hostile], name=view_runs.HOSTILE[1], surface=Page()))
    pages = [output.data["text/html"] for output in captured.outputs]
    assert len(pages) >= 2
    with capture_output() as told:
        Following("toy", 3, Page()).say("<img src=x onerror=alert(1)>")
    assert "<img" not in told.outputs[-1].data["text/html"]
    assert "<script" not in pages[-1]
    assert "<img" not in pages[-1]
    assert "&lt;/script&gt;" in pages[-1]
    assert "finished, step 1" in captured.outputs[-1].data["text/plain"]


def test_a_figure_is_shown_by_its_numbers_and_its_picture_alone(shell: InteractiveShell):
    from muster.notebook.drawing import Drawing

    formatter: Any = shell.display_formatter
    formatted, _ = formatter.format(RunFigure().drawn_as(Drawing("<svg/>", "said")))
    assert set(formatted) == {"application/vnd.plotly.v1+json", "image/svg+xml", "text/plain"}
    assert formatted["text/plain"] == "said"


def test_a_terminal_has_one_line_that_is_drawn_over():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    list(follow(reports(), steps=3, name="toy", surface=Terminal(console)))
    assert "running, step 2 of 3, 0:05 left · reward 0.823" in out.getvalue()
    assert "finished, step 3 of 3" in out.getvalue()
    assert out.getvalue().count("\n") <= 2


def test_a_file_is_left_alone():
    out = io.StringIO()
    list(follow(reports(), surface=Terminal(Console(file=out))))
    assert out.getvalue() == ""


def test_a_script_needs_no_ipython():
    code = (
        "import sys; sys.modules['IPython'] = None\n"
        "from muster.notebook import follow, is_notebook\n"
        "assert not is_notebook() and list(follow([])) == []\n"
    )
    done: Any = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
