"""The best and the worst rollouts of a step, as text and as a table of a page."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from muster.escaping import escape_block, escape_text
from muster.notebook.drawing import short
from muster.store import Line
from muster.view.curves import number_of
from muster.view.samples import brief, question

MAX_CHARACTERS = 600
"""Of a completion that is shown."""


class Sample(NamedTuple):
    """One rollout to look at."""

    step: int
    prompt: str
    completion: str
    score: float | None
    advantage: float | None
    finish: str


class Samples(Sequence[Sample]):
    """Some rollouts, the best first."""

    def __init__(self, rows: Sequence[Sample]) -> None:
        self._rows = tuple(rows)

    def __getitem__(self, place):  # noqa: ANN001, ANN204 -- an index or a slice, as of a tuple
        return self._rows[place]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._rows)

    def __repr__(self) -> str:
        """A paragraph for each."""
        return "\n\n".join(
            f"step {row.step}  score {short(row.score)}  {escape_text(row.prompt)}\n{escape_block(_cut(row))}"
            for row in self._rows
        )

    def _repr_html_(self) -> str:
        """A table; what a model wrote stays text."""
        cell = '<td style="text-align:left;vertical-align:top;white-space:pre-wrap">'
        rows = "".join(
            f"<tr><td>{row.step}</td><td>{short(row.score)}</td><td>{short(row.advantage)}</td>"
            f"{cell}{escape(escape_text(row.prompt))}</td>{cell}{escape(escape_block(_cut(row)))}</td></tr>"
            for row in self._rows
        )
        heads = "".join(f"<th>{name}</th>" for name in ("step", "score", "advantage", "prompt", "completion"))
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _cut(row: Sample) -> str:
    text = row.completion
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} … ({len(text):,} characters)"


def best_and_worst(step: int, rows: Sequence[Line], count: int) -> Samples:
    """So many rollouts of the step's, half of them the best and half the worst, each text once."""
    distinct = {(row.get("group_id"), row.get("completion_text")): row for row in rows}
    # A failed rollout has no score; where none has one, as of given answers, all are shown.
    scored = [row for row in distinct.values() if number_of(row.get("score")) is not None]
    ranked = sorted(scored or distinct.values(), key=lambda row: -(number_of(row.get("score")) or 0.0))
    best = (count + 1) // 2
    chosen = ranked if len(ranked) <= count else [*ranked[:best], *ranked[len(ranked) - (count - best) :]]
    return Samples([_sample(step, row) for row in chosen])


def _sample(step: int, row: Line) -> Sample:
    return Sample(
        step=step,
        prompt=brief(question(row)),
        completion=str(row.get("completion_text") or ""),
        score=number_of(row.get("score")),
        advantage=number_of(row.get("advantage")),
        finish=str(row.get("finish_reason") or ""),
    )
