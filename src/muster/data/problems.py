"""What is wrong with the rows of one file, gathered so that one error names the first few and counts all."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.errors import DataError

SHOWN_PROBLEMS = 5
SHOWN_NAMES = 20


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

    def add(self, place: str, says: str) -> None:
        """Notes what is wrong at a place."""
        self.found.append(f"{place}: {says}")

    def refuse_if_any(self) -> None:
        """Raises the error that lists the first problems and counts all."""
        if not self.found:
            return
        count = len(self.found)
        head = f"{self.source}: {count} problem{'s' if count > 1 else ''}"
        lines = [f"  {problem}" for problem in self.found[:SHOWN_PROBLEMS]]
        if count > SHOWN_PROBLEMS:
            lines.append(f"  and {count - SHOWN_PROBLEMS} more")
        raise DataError("\n".join([head, *lines]))
