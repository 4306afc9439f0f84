"""The growth curves as small SVG files."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import figure

Points = list[dict[str, Any]]

SIZE_INCHES = (5.2, 3.2)
# Text stays text, and equal numbers give equal bytes.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "muster", "font.size": 9})


def draw_curves(data: dict[str, Any], folder: Path) -> None:
    """Writes group.svg and prompt.svg."""
    sizes = [point["group_size"] for point in data["groups"]]
    each = [_total(point) / point["group_size"] for point in data["groups"]]
    picture, axes = _axes("group size", "seconds per completion")
    axes.plot(sizes, each, "o-", label="sampling and update")
    _finish(picture, axes, sizes, folder / "group.svg")

    lengths = [point["prompt_tokens"] for point in data["lengths"]]
    totals = [_total(point) for point in data["lengths"]]
    picture, axes = _axes("prompt tokens", f"seconds, group of {data['length_group']}")
    axes.plot(lengths, totals, "o-", label="sampling and update")
    naive = naive_seconds(lengths, totals[0], data["new_tokens"])
    axes.plot(lengths, naive, "--", color="gray", label="if it grew with prompt x group")
    _finish(picture, axes, lengths, folder / "prompt.svg")


def naive_seconds(lengths: list[int], first_s: float, new_tokens: int) -> list[float]:
    """The first point's seconds grown with the tokens of rows that each carry their own prompt."""
    return [first_s * (length + new_tokens) / (lengths[0] + new_tokens) for length in lengths]


def _total(point: dict[str, Any]) -> float:
    return figure(point["sample_s"]).median + figure(point["update_s"]).median


def _axes(across: str, up: str) -> tuple[Figure, Axes]:
    picture = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = picture.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_xscale("log", base=2)
    return picture, axes


def _finish(picture: Figure, axes: Axes, ticks: list[int], path: Path) -> None:
    axes.set_ylim(bottom=0)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.grid(alpha=0.3)
    axes.legend()
    picture.savefig(path, metadata={"Date": None})
