"""Two runs beside each other: settings that differ, curves, held-out reward, the same prompts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.findings import known_findings
from muster.cli.outcome import answer_text, held_out_loss
from muster.cli.samples import question_text
from muster.cli.story import SHOWN
from muster.cli.text import escape_text, number, shortened, sparkline
from muster.config import Changed, changed_settings, load, shown_or_absent
from muster.records import Group
from muster.stats import Interval, difference, mean_of, paired_difference
from muster.store import Line, eval_steps, read_eval, read_metrics

MAX_CURVE, MIN_CURVE = 20, 6
_BESIDE_CURVES = 76
"""Columns of the table of metrics that its two curves leave to the rest."""
NUM_PAIRS = 3
_OF_THE_FOLDER = frozenset({"run.name", "run.dir"})
_VALUE_LIMIT = 60


class Side(NamedTuple):
    """One of the two runs."""

    folder: Path
    lines: Sequence[Line]
    eval_step: int | None
    """The last evaluation; None for none."""
    groups: tuple[Group, ...]
    """Of that evaluation."""


class HeldOutGain(NamedTuple):
    """Held-out reward of the second run less that of the first, at their last evaluations."""

    gain: Interval
    num_prompts: int
    """That were compared."""
    is_paired: bool
    """Prompt by prompt; else the prompts are not the same, and each side has its own."""


def side_of(folder: Path) -> Side:
    """What is compared of a run."""
    steps = eval_steps(folder)
    groups = read_eval(folder, steps[-1]).groups if steps else ()
    return Side(folder, read_metrics(folder), steps[-1] if steps else None, groups)


def settings_that_differ(first: Side, second: Side) -> list[Changed]:
    """Without where the runs are."""
    configs = [load(side.folder / "config.toml") for side in (first, second)]
    return [one for one in changed_settings(*configs) if one.path not in _OF_THE_FOLDER]


def held_out_difference(first: Side, second: Side) -> HeldOutGain | None:
    """Paired where half of one run's prompts are the other's, too; None without an evaluation."""
    scores = [_scores(side.groups) for side in (first, second)]
    if not scores[0] or not scores[1]:
        return None
    both = [prompt for prompt in scores[0] if prompt in scores[1]]
    if 2 * len(both) >= min(map(len, scores)):
        gain = paired_difference([scores[0][p] for p in both], [scores[1][p] for p in both])
        return HeldOutGain(gain, len(both), True)
    gain = difference(list(scores[0].values()), list(scores[1].values()))
    return HeldOutGain(gain, min(map(len, scores)), False)


def _scores(groups: Sequence[Group]) -> dict[str, float]:
    """Mean score by prompt."""
    means = {g.prompt_text: mean_of([r.score.value for r in g.rollouts]) for g in groups}
    return {prompt: mean for prompt, mean in means.items() if mean is not None}


def print_comparison(first: Side, second: Side, console: Console) -> None:
    """Prints all of it."""
    names = [escape_text(side.folder.name) for side in (first, second)]
    console.print(settings_table(settings_that_differ(first, second), names))
    console.print()
    console.print(curves_table(first, second, names, (console.width - _BESIDE_CURVES) // 2))
    console.print()
    console.print(held_out_text(held_out_difference(first, second), first, second), soft_wrap=True)
    pairs = same_prompts(first, second)[:NUM_PAIRS]
    if pairs:
        console.print(pairs_table(pairs, names))
    for name, side in zip(names, (first, second)):
        found = ", ".join(str(one.get("name")) for one in known_findings(side.folder).found) or "none"
        console.print(Text(f"findings of {name}: {found}"))


def settings_table(found: Sequence[Changed], names: Sequence[str]) -> Table | Text:
    """One row per setting."""
    if not found:
        return Text("the settings are the same")
    table = Table(box=None, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    for name in names:
        table.add_column(name, overflow="fold")
    for one in found:
        values = [escape_text(shortened(shown_or_absent(v), _VALUE_LIMIT)) for v in (one.before, one.after)]
        table.add_row(one.path, *values)
    return table


def curves_table(first: Side, second: Side, names: Sequence[str], room: int) -> Table:
    """First and last value of each metric, run by run, and the curve where there is room for it."""
    table = Table(box=None, pad_edge=False)
    table.add_column("metric", overflow="fold")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        if room >= MIN_CURVE:
            table.add_column("", no_wrap=True)
    keys = {key: None for side in (first, second) for line in side.lines for key in line}
    means = [key for key in keys if key.startswith("rewards/") and key.endswith("/mean")]
    for key in (*SHOWN, *means):
        cells = [cell for side in (first, second) for cell in _cells(side, key, room)]
        if any(cells):
            table.add_row(escape_text(key), *cells)
    return table


def _cells(side: Side, key: str, room: int) -> list[str]:
    """First and last value, and the curve where there is room."""
    values = [line.get(key) for line in side.lines if key in line]
    there = [value for value in values if value is not None]
    if not there:
        return [""] if room < MIN_CURVE else ["", ""]
    ends = f"{number(there[0])} -> {number(there[-1])}"
    return [ends] if room < MIN_CURVE else [ends, sparkline(values, min(room, MAX_CURVE))]


def held_out_text(found: HeldOutGain | None, first: Side, second: Side) -> Text:
    """The difference in a sentence, and whether it may be chance."""
    if found is None:
        return _held_out_losses(first, second)
    gain = found.gain
    text = Text("held-out difference: ").append(f"{gain.mean:+.3g}", style="bold")
    kind = "equal" if found.is_paired else "unequal"
    text.append(f" for {escape_text(second.folder.name)}, on {found.num_prompts} {kind} prompts")
    text.append(f" (steps {first.eval_step} and {second.eval_step})")
    if gain.low is not None and gain.high is not None:
        is_clear = gain.low > 0 or gain.high < 0
        told = "0 is outside" if is_clear else "0 is inside: it may be chance"
        text.append(f"; 95 % interval {gain.low:+.3g} to {gain.high:+.3g}, {told}", style="dim")
    return text


def _held_out_losses(first: Side, second: Side) -> Text:
    """Of two warm starts their held-out losses, each at its last evaluation."""
    found = [[line for line in side.lines if line.get("eval_loss") is not None] for side in (first, second)]
    if not all(found):
        return Text("no held-out difference: a run was not evaluated")
    both = [
        f"{escape_text(side.folder.name)} {held_out_loss(some[-1])}"
        for side, some in zip((first, second), found)
    ]
    return Text("held-out loss: " + "; ".join(both))


def same_prompts(first: Side, second: Side) -> list[tuple[Group, Group]]:
    """Held-out prompts that both were asked, those whose scores differ most first."""
    theirs = {group.prompt_text: group for group in second.groups}
    pairs = [(group, theirs[group.prompt_text]) for group in first.groups if group.prompt_text in theirs]
    return sorted(pairs, key=lambda pair: -abs(_mean(pair[1]) - _mean(pair[0])))


def _mean(group: Group) -> float:
    return mean_of([rollout.score.value for rollout in group.rollouts]) or 0.0


def pairs_table(pairs: Sequence[tuple[Group, Group]], names: Sequence[str]) -> Table:
    """Answers side by side."""
    table = Table(show_lines=True, expand=True)
    table.add_column("prompt", ratio=2, overflow="fold")
    for name in names:
        table.add_column(name, ratio=3, overflow="fold")
    for first, second in pairs:
        question = question_text(second.sample, second.prompt_text)
        table.add_row(question, answer_text(first), answer_text(second))
    return table


def comparison_as_json(first: Side, second: Side) -> Mapping[str, object]:
    """All of it as plain data."""
    held_out = held_out_difference(first, second)
    keys = {key: None for side in (first, second) for line in side.lines for key in line if key != "step"}
    sides = {"first": first, "second": second}
    return {
        **{name: {"folder": str(side.folder), "eval_step": side.eval_step} for name, side in sides.items()},
        "settings": [one._asdict() for one in settings_that_differ(first, second)],
        "curves": {
            key: {
                name: [[line["step"], line[key]] for line in side.lines if line.get(key) is not None]
                for name, side in sides.items()
            }
            for key in keys
        },
        "held_out": None
        if held_out is None
        else {**held_out.gain._asdict(), "prompts": held_out.num_prompts, "is_paired": held_out.is_paired},
        "prompts": [
            {
                "prompt": one.prompt_text,
                "first": [[r.score.value, r.text] for r in one.rollouts],
                "second": [[r.score.value, r.text] for r in other.rollouts],
            }
            for one, other in same_prompts(first, second)
        ],
        "findings": {name: list(known_findings(side.folder).found) for name, side in sides.items()},
    }
