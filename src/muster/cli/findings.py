"""Findings on a terminal: what, since when, how sure, on what evidence, what it means, what to change."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from muster.cli.output import log_line, program
from muster.cli.targets import readable
from muster.cli.text import escape_text, number
from muster.doctor import KINDS, LEVELS, Finding, course_of, examine
from muster.errors import ConfigError
from muster.nearest import did_you_mean
from muster.store import Line

FINDINGS = 3
"""Exit code of a run that stopped at a finding, and of a doctor that was to fail on one."""
_STYLES = {"note": "cyan", "warning": "yellow", "serious": "bold red"}
_MARKS = {"note": "·", "warning": "!", "serious": "!!"}
"""So that colour is not the only sign."""


def findings_in(folder: Path) -> list[Finding]:
    """What the doctor finds in the run; what it had to leave out, as damaged, is logged."""
    with readable(folder):
        course = course_of(folder)
        found = examine(course)
    for reason in course.unread:
        log_line(f"left out: {reason}")
    return found


class Pausing:
    """Says what the doctor finds while a run goes on, and remembers whether it is to stop at it."""

    def __init__(self, pause_on: Sequence[str], say: Callable[[str], None]) -> None:
        self._pause_on = pause_on
        self._say = say
        self.exit_code = 0
        """3 once one of the findings to pause on was found."""

    def take(self, step: int, finding: Finding) -> None:
        """A finding, and the step at which it was found."""
        self._say(f"step {step}: {headline(finding)}")
        if finding.name in self._pause_on:
            self.exit_code = FINDINGS


def wanted_by(fail_on: str | None) -> frozenset[str]:
    """The levels, or the name, that `--fail-on` asks to fail on; refuses what is neither."""
    if fail_on is None:
        return frozenset()
    for place, level in enumerate(LEVELS):
        if level == fail_on:
            return frozenset(LEVELS[place:])
    if fail_on not in KINDS:
        raise ConfigError(
            f"--fail-on is {fail_on!r}: no level and no finding.{did_you_mean(fail_on, [*LEVELS, *KINDS])} "
            f"Levels: {', '.join(LEVELS)}. Findings: {', '.join(KINDS)}."
        )
    return frozenset({fail_on})


def is_among(found: Sequence[Finding], wanted: frozenset[str]) -> bool:
    """One of the findings has a wanted level or name."""
    return any(finding.level in wanted or finding.name in wanted for finding in found)


def headline(finding: Finding) -> str:
    """A finding in a line."""
    return (
        f"{_MARKS[finding.level]} {finding.name} since step {finding.since}, {finding.sure}: {finding.what}"
    )


def print_headlines(found: Sequence[Finding], folder: Path, console: Console) -> None:
    """Prints a line per finding, and where to read more."""
    if not found:
        return
    console.print(Text(f"findings: {len(found)}", style="bold"))
    for finding in found:
        console.print(
            Padding(Text(escape_text(headline(finding)), style=_STYLES[finding.level]), (0, 0, 0, 2)),
            soft_wrap=False,
        )
    console.print(Text(f"  more: {program()} doctor {escape_text(str(folder))}", style="dim"), soft_wrap=True)


def print_findings(found: Sequence[Finding], earlier: Sequence[Line], folder: Path, console: Console) -> None:
    """Prints each finding whole, and what was told during the run and no longer holds."""
    if not found:
        console.print(Text("no findings: nothing stands out against the run's own first steps"))
    for finding in found:
        _print_finding(finding, folder, console)
    if earlier:
        console.print(Text("told during the run, and no longer so", style="bold"))
    for event in earlier:
        text = f"step {event.get('step')}: {event.get('name')}: {event.get('what')}"
        console.print(Padding(Text(escape_text(text), style="dim"), (0, 0, 0, 2)))


def _print_finding(finding: Finding, folder: Path, console: Console) -> None:
    head = f"{_MARKS[finding.level]} {finding.name}  ({finding.level})"
    console.print(Text(head, style=_STYLES[finding.level]))
    rows = [
        ("what", finding.what),
        ("since", f"step {finding.since}"),
        ("sure", f"{finding.sure}: {finding.how}"),
        ("evidence", _numbers(finding)),
        *(("look", command) for command in look_commands(finding, folder)),
        ("means", finding.kind.means),
        ("change", finding.kind.change),
    ]
    for name, text in rows:
        _print_row(name, text, console)
    console.print()


def _print_row(name: str, text: str, console: Console) -> None:
    """A label, and the text beside it, wrapped below itself."""
    lines = Text(escape_text(text)).wrap(console, max(console.width - 12, 20))
    for place, line in enumerate(lines):
        label = Text(f"  {name if place == 0 else '':<10}", style="dim")
        console.print(label + line, soft_wrap=True)


def _numbers(finding: Finding) -> str:
    numbers = dict(finding.evidence.numbers)
    shown: list[str] = []
    for name, value in finding.evidence.numbers.items():
        stem = name.removesuffix(" at first")
        if name != stem and f"{stem} now" in numbers:
            shown.append(f"{stem} {number(value)} -> {number(numbers.pop(f'{stem} now'))}")
        elif name in numbers:
            shown.append(f"{name} {number(value)}")
    steps = finding.evidence.steps
    listed = f"steps {', '.join(map(str, steps))}" if steps else ""
    return "; ".join([*shown, *([listed] if listed else [])])


def look_commands(finding: Finding, folder: Path) -> list[str]:
    """What to type to see the groups and rollouts of the evidence."""
    seen = finding.evidence
    places: dict[tuple[int, int], list[str]] = {}
    for rollout in seen.rollouts:
        places.setdefault((rollout.step, rollout.place), []).append(str(rollout.rollout))
    for group in seen.groups:
        places.setdefault((group.step, group.place), [])
    return [
        f"{program()} show {folder} --step {step} --group {place}"
        + (f"   (rollout{'s' if len(indices) > 1 else ''} {', '.join(indices)})" if indices else "")
        for (step, place), indices in places.items()
    ]
