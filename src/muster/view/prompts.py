"""How each prompt fared over a run: from the file of groups, or where an older run has none, from samples."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from muster.errors import MusterError
from muster.store import Got, Line, groups_line
from muster.view.curves import number_of

MAX_OPENED = 300
"""Steps whose rollouts are opened for a run without the file of groups: evenly spread over it."""


class Visit(NamedTuple):
    """A prompt's group at a step."""

    step: int
    mean: float | None
    low: float | None
    high: float | None
    length: float | None


class PromptHistory:
    """The visits of every prompt, from the lines of groups; new lines only are looked at."""

    def __init__(self) -> None:
        self._visits: dict[str, list[Visit]] = {}
        self._taken = 0
        self._first: Line | None = None

    def take(self, lines: Sequence[Line]) -> None:
        """Takes in the lines that came; starts over where the file was written anew."""
        first = lines[0] if lines else None
        if len(lines) < self._taken or first is not self._first:
            self._visits, self._taken, self._first = {}, 0, first
        for line in lines[self._taken :]:
            self._add(line)
        self._taken = len(lines)

    def _add(self, line: Line) -> None:
        step, groups = line.get("step"), line.get("groups")
        if not isinstance(step, int) or not isinstance(groups, list):
            return
        for group in groups:
            if isinstance(group, dict) and isinstance(group.get("sample"), str):
                self._visits.setdefault(group["sample"], []).append(visit_of(step, group))

    def of(self, sample: str) -> list[Visit]:
        """The visits of a prompt, in order of steps."""
        return sorted(self._visits.get(sample, []), key=lambda visit: visit.step)

    def seen_before(self, sample: str, step: int) -> int:
        """At how many earlier steps the prompt was drawn."""
        return len({visit.step for visit in self.of(sample) if visit.step < step})


def visit_of(step: int, entry: Line) -> Visit:
    """What a group's entry in the file of groups says about its prompt."""
    return Visit(step, *(number_of(entry.get(name)) for name in ("mean", "low", "high", "length")))


class OpenedGroups:
    """Lines as the file of groups has them, made from the rollouts of a run that has no such file."""

    def __init__(self, steps: Callable[[], Sequence[int]], rows: Callable[[int], Sequence[Line]]) -> None:
        self._steps = steps
        self._rows = rows
        self._made: dict[int, Line] = {}

    def look(self) -> list[Line]:
        """A line per step that was opened, in the order of opening: whoever reads on finds new ones last."""
        steps = self._steps()
        stride = max(1, -(-len(steps) // MAX_OPENED))
        for step in steps[::stride]:
            if step not in self._made:
                self._made[step] = _line(step, self._readable(step))
        return list(self._made.values())

    def _readable(self, step: int) -> Sequence[Line]:
        """The step's rows; none where its file can't be read."""
        with suppress(MusterError):
            return self._rows(step)
        return ()


def _line(step: int, rows: Sequence[Line]) -> Line:
    """A step's line from its rollouts."""
    by_group = [list(some) for _, some in groupby(rows, key=lambda row: row.get("group_id"))]
    return groups_line(step, [_got(some) for some in by_group])


def _got(members: Sequence[Line]) -> Got:
    return Got(
        sample=str(members[0].get("sample_id")),
        scores=[score for row in members if (score := number_of(row.get("score"))) is not None],
        lengths=[length for row in members if isinstance(length := row.get("length"), int)],
    )
