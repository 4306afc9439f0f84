"""A picture in plain numbers: what `explain` makes, the terminal and the page draw, and JSON holds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

Cell = str | int | float | None
"""Of a table; None where there is nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows under named columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One line of a chart."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    """As many as `x`; None is a gap."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Curves over the same axis."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    is_log: bool = False
    """Both axes are logarithmic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Values side by side, some for each label."""

    title: str
    value_label: str
    labels: tuple[str, ...]
    series: Mapping[str, tuple[float | None, ...]]
    """By name, as many values each as there are labels."""


Block = str | Table | Chart | Bars
"""A string is a paragraph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """What is shown, from top to bottom."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    numbers: Mapping[str, object] = field(default_factory=dict)
    """What the blocks say, by name, for programs."""

    def to_plain(self) -> dict[str, object]:
        """The picture in JSON's types; each block says its kind."""
        return {
            "picture": self.name,
            "title": self.title,
            "numbers": dict(self.numbers),
            "blocks": [_plain_block(block) for block in self.blocks],
        }


def _plain_block(block: Block) -> dict[str, object]:
    if isinstance(block, str):
        return {"kind": "text", "text": block}
    return {"kind": type(block).__name__.lower(), **asdict(block)}
