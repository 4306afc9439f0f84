"""Findings on a terminal: what, since when, how sure, on what evidence, what it means, what to change."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from muster.cli.output import log_line, program
from muster.cli.targets import readable
from muster.cli.text import escape_text, number
from muster.doctor import KINDS, LEVELS, Finding, in_words, told
from muster.doctor.baseline import MIN_POINTS
from muster.errors import ConfigError
from muster.nearest import did_you_mean
from muster.store import Line, read_events
from muster.view.examining import BUDGET_TOKENS, Examined, examined
from muster.view.sources import Source, source_of

FINDINGS = 3
"""Exit code of a run that stopped at a finding, and of a doctor that was to fail on one."""
_STYLES = {"note": "cyan", "warning": "yellow", "serious": "bold red"}
_MARKS = {"note": "·", "warning": "!", "serious": "!!"}
"""So that colour is not the only sign."""


def examined_now(source: Source, budget_tokens: int | None = None) -> Examined:
    """What the doctor finds in the run; what it had to leave out, as damaged, is logged."""
    found = examined(source, budget_tokens)
    for reason in found.course.unread:
        log_line(f"left out: {reason}")
    return found


class Known(NamedTuple):
    """What is known of a run's findings without reading all that the doctor does."""

    found: Sequence[Line]
    """Each as plain data."""
    was_told: bool
    """Training told them; else they were looked for now, in some of the rollouts."""


def known_findings(folder: Path) -> Known:
    """What training told, from its events; where nobody watched it, what a quick look finds."""
    with readable(folder):
        said = told(read_events(folder))
    if said is not None:
        return Known(said, True)
    source = source_of(folder)
    found = examined_now(source, BUDGET_TOKENS).findings if source else ()
    return Known([finding.to_plain() for finding in found], False)


class Pausing:
    """Says what the doctor finds while a run goes on, and remembers whether it is to stop at it."""

    def __init__(self, pause_on: Sequence[str], say: Callable[[str], None]) -> None:
        self._pause_on = pause_on
        self._say = say
        self.exit_code = 0
        """3 once one of the findings to pause on was found."""

    def take(self, step: int, finding: Finding) -> None:
        """A finding, and the step at which it was found."""
        self._say(f"step {step}: {headline(finding.to_plain())}")
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


def headline(finding: Line) -> str:
    """A finding, as plain data, in a line."""
    mark = _MARKS.get(str(finding.get("level")), "!")
    since, sure = finding.get("since"), finding.get("sure")
    return f"{mark} {finding.get('name')} since step {since}, {sure}: {finding.get('what')}"


def print_headlines(known: Known, folder: Path, console: Console) -> None:
    """Prints a line per finding, who says so, and where to read more."""
    how = " told while it trained" if known.was_told else ""
    if known.found:
        console.print(Text(f"findings{how}: {len(known.found)}", style="bold"))
    for finding in known.found:
        style = _STYLES.get(str(finding.get("level")), "")
        line = Text(escape_text(headline(finding)), style=style)
        console.print(Padding(line, (0, 0, 0, 2)), soft_wrap=False)
    if known.found or known.was_told:
        more = "more" if known.found else f"no findings{how}; to ask afresh"
        line = f"  {more}: {program()} doctor {escape_text(str(folder))}"
        console.print(Text(line, style="dim"), soft_wrap=True)


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


def print_limits(found: Examined, console: Console) -> None:
    """Prints what the doctor could not look at: too few steps, and rules that lack what they need."""
    number = len(found.course.lines)
    if number < MIN_POINTS:
        text = f"{number} step{'' if number == 1 else 's'} so far: no trend shows in fewer than {MIN_POINTS}"
        console.print(Text(text, style="dim"))
    if found.unasked:
        console.print(Text("not asked", style="bold"))
    for text in in_words(found.unasked):
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
