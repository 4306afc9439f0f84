"""A regrade on a terminal: what is otherwise, before and after, the steps, the rollouts that changed most."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.cli.output import program
from muster.cli.text import escape_text, number, percent, shortened, sparkline
from muster.store import Changes, Compared, Graded, Regrade

NUM_ROLLOUTS = 8
"""Of those that changed most; the file has more."""
NUM_LEFT_OUT = 5
"""Steps left out that are named; the file has all."""
_MAX_ROWS = 12
"""Steps in the table; of more, so many spread over the run."""
_CURVE = 60
_VALUE_LIMIT = 48
_WHY_LIMIT = 60

Pick = Callable[[Compared], float | None]


def print_regrade(regrade: Regrade, folder: Path, kept: Path | None, console: Console) -> None:
    """Prints all of it, and where more is to be found."""
    console.print(Text(f"{escape_text(folder.name)} under {regrade.name}: {_extent(regrade)}", style="bold"))
    for one in regrade.settings:
        values = [escape_text(shortened(one[side], _VALUE_LIMIT)) for side in ("before", "after")]
        console.print(Text(f"  {one['path']}: {values[0]} -> {values[1]}"), soft_wrap=True)
    console.print(Text(reproduced_text(regrade)), soft_wrap=True)
    console.print()
    console.print(sides_table(regrade))
    console.print()
    console.print(agreement_text(regrade), soft_wrap=True)
    if len(regrade.steps) > 1:
        console.print()
        console.print(steps_table(regrade.steps))
    if len(regrade.steps) > _MAX_ROWS:
        console.print(curves_text(regrade.steps))
    if regrade.changed_most:
        console.print()
        console.print(changed_table(regrade.changed_most[:NUM_ROLLOUTS]))
        first = regrade.changed_most[0]
        look = f"show {escape_text(str(folder))} --step {first.step} --group {first.group}"
        console.print(Text(f"look: {program()} {look}", style="dim"), soft_wrap=True)
    _print_limits(regrade, console)
    if kept is not None:
        said = f"kept in {escape_text(str(kept))}; {program()} view {escape_text(str(folder))} shows it"
        console.print(Text(said, style="dim"), soft_wrap=True)


def _extent(regrade: Regrade) -> str:
    whole = regrade.whole
    return f"{whole.rollouts:,} rollouts of {whole.groups:,} groups in {len(regrade.steps):,} steps"


def reproduced_text(regrade: Regrade) -> str:
    """Whether anything changes at all, and how far the run's own settings give what it recorded."""
    done = regrade.reproduced
    own = (
        f"The run's own settings give {done.advantages:,} of its {done.of_advantages:,} recorded advantages "
        "to the last bit"
    )
    if done.of_clip_steps:
        own += f", and the clip shares of {done.clip_steps:,} of {done.of_clip_steps:,} steps"
    if not regrade.is_unchanged:
        return f"{own}."
    return f"{own}. Nothing changes: scores, advantages and coefficients are the recorded ones."


def sides_table(regrade: Regrade) -> Table:
    """Before and after, over all steps."""
    before, after = regrade.whole.before, regrade.whole.after
    table = Table(box=None, pad_edge=False)
    table.add_column("all steps")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")

    def row(title: str, show: Callable[[Graded], str]) -> None:
        table.add_row(title, show(before), show(after))

    row("mean score", lambda side: number(side.mean))
    row("rollouts with a score", lambda side: f"{side.scored:,}")
    if before.failed or after.failed or before.abstained or after.abstained:
        row("a reward failed", lambda side: f"{side.failed:,}")
        row("no reward judged", lambda side: f"{side.abstained:,}")
    row("groups mixed", lambda side: f"{side.mixed:,} of {regrade.whole.groups:,}")
    row("clipped low", lambda side: share_text(side.share(side.clipped_low)))
    row("clipped high", lambda side: share_text(side.share(side.clipped_high)))
    return table


def agreement_text(regrade: Regrade) -> Text:
    """How advantages and coefficients go together, in two lines."""
    whole, agreement = regrade.whole, regrade.whole.agreement
    return Text(
        f"advantages: correlation {number(whole.advantage_correlation)}\n"
        f"coefficients of {agreement.tokens:,} tokens: cosine {number(agreement.cosine)}, same sign "
        f"{share_text(agreement.same_sign)}, norm after / before {number(agreement.relative_norm)}"
    )


def share_text(share: float | None) -> str:
    """Percent, with a decimal where it is small; a dash for none."""
    if share is None:
        return "-"
    return f"{100 * share:.1f}%" if 0 < share < 0.1 or 0.9 < share < 1 else percent(share)


def steps_table(steps: Sequence[Compared]) -> Table:
    """A row per step; of many, so many spread over the run."""
    table = Table(box=None, pad_edge=False)
    for title in ("step", "mean score", "groups mixed", "advantages", "cosine", "same sign", "norm ratio"):
        table.add_column(title, justify="right", no_wrap=True)
    for step in _spread(steps):
        before, after, agreement = step.before, step.after, step.agreement
        table.add_row(
            str(step.step),
            f"{number(before.mean)} -> {number(after.mean)}",
            f"{before.mixed} -> {after.mixed}",
            number(step.advantage_correlation),
            number(agreement.cosine),
            share_text(agreement.same_sign),
            number(agreement.relative_norm),
        )
    return table


def curves_text(steps: Sequence[Compared]) -> Text:
    """What the table leaves out of a long run, a line each."""
    curves: Sequence[tuple[str, Pick]] = (
        ("score before", lambda step: step.before.mean),
        ("score after", lambda step: step.after.mean),
        ("cosine", lambda step: step.agreement.cosine),
    )
    lines = [f"{name:12}  {sparkline([pick(step) for step in steps], _CURVE)}" for name, pick in curves]
    return Text("\n".join(lines))


def _spread(steps: Sequence[Compared]) -> list[Compared]:
    """All of a few; of many the first, the last and an even choice between them."""
    if len(steps) <= _MAX_ROWS:
        return list(steps)
    return [steps[place * (len(steps) - 1) // (_MAX_ROWS - 1)] for place in range(_MAX_ROWS)]


def changed_table(changed: Sequence[Changes]) -> Table:
    """The rollouts that changed most."""
    table = Table(title="changed most", title_justify="left", box=None, pad_edge=False)
    for title in ("step", "group", "rollout", "score before", "after", "advantage before", "after"):
        table.add_column(title, justify="right")
    has_reasons = any(one.why for one in changed)
    if has_reasons:
        table.add_column("why there is none", overflow="fold")
    for one in changed:
        numbers = (one.score_before, one.score_after, one.advantage_before, one.advantage_after)
        reason = [escape_text(shortened(one.why or "", _WHY_LIMIT))] if has_reasons else []
        place = map(str, (one.step, one.group, one.index))
        table.add_row(*place, *map(number, numbers), *(Text(text) for text in reason))
    return table


def _print_limits(regrade: Regrade, console: Console) -> None:
    """What failed, what was left out, and what limits the numbers."""

    def say(text: str, style: str) -> None:
        console.print(Padding(Text(escape_text(text), style=style), (0, 0, 0, 2)), soft_wrap=False)

    if regrade.failures or regrade.left_out or regrade.notes:
        console.print()
    for reason, count in regrade.failures.items():
        say(f"! {count:,} times: {reason}", "red")
    for reason in regrade.left_out[:NUM_LEFT_OUT]:
        say(f"left out: {reason}", "yellow")
    if (more := len(regrade.left_out) - NUM_LEFT_OUT) > 0:
        say(f"left out: {more:,} more steps", "yellow")
    for note in regrade.notes:
        say(f"note: {note}", "yellow")
