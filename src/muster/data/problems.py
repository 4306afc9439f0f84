"""What is wrong with the rows of one file, gathered so that one error names the first few and counts all."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.errors import DataError

SHOWN_PROBLEMS = 5
SHOWN_NAMES = 20
MAX_PROBLEMS = 1_000
"""Reading stops there: a file with so many is not what it was taken for."""


def listed(names: Iterable[str]) -> str:
    """Names from a file as a message can show them: quoted, unprintable characters escaped, not too many."""
    shown = [ascii(name) if not name.isprintable() else repr(name) for name in names]
    return ", ".join([*shown[:SHOWN_NAMES], *(["..."] if len(shown) > SHOWN_NAMES else [])]) or "nothing"


class Row(NamedTuple):
    """One row as its file gives it, before it is checked."""

    place: str
    """Where a person finds it: `line 7` in text files, `row 7` (counted from 1) elsewhere."""
    values: dict[str, object]


@dataclass
class Problems:
    """Collects the problems of one source; `refuse_if_any` turns them into one error."""

    source: str
    """The file or data set, as messages name it."""
    found: list[str] = field(default_factory=list)
    """The first of them, in words."""
    count: int = 0

    def add(self, place: str, says: str) -> None:
        """Notes what is wrong at a place; raises once there is too much."""
        self.count += 1
        if self.count <= SHOWN_PROBLEMS:
            self.found.append(f"{place}: {says}")
        if self.count >= MAX_PROBLEMS:
            self.refuse_if_any()

    def refuse_if_any(self) -> None:
        """Raises the error that lists the first problems and counts all."""
        count = self.count
        if not count:
            return
        more = " or more" if count >= MAX_PROBLEMS else ""
        head = f"{self.source}: {count}{more} problem{'s' if count > 1 else ''}"
        lines = [f"  {problem}" for problem in self.found]
        if count > SHOWN_PROBLEMS:
            lines.append(f"  and {count - SHOWN_PROBLEMS}{more} more")
        raise DataError("\n".join([head, *lines]))
