"""The prompts of a run on a terminal: which of them teach, which are too hard, which are solved."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from muster.cli.output import PatientConsole
from muster.cli.samples import question_text
from muster.cli.text import escape_text, number
from muster.history import History, Tally, Visit
from muster.store import PromptScores, read_prompt_scores, rollout_steps

_SHOWN = 5


class Drawn(NamedTuple):
    """A prompt that was drawn, as of the run's last step."""

    latest: PromptScores
    num_groups: int
    last_step: int
    tally: Tally
    weight: float
    """In a draw; that of a prompt that was never drawn is 1."""


def prompts_of(folder: Path) -> list[Drawn]:
    """Every prompt that was drawn, in the order of first draws."""
    history = History()
    latest: dict[str, PromptScores] = {}
    counts: dict[str, int] = {}
    for step in rollout_steps(folder):
        groups = read_prompt_scores(folder, step)
        history = history.after(step, [Visit(group.sample.id, group.scores) for group in groups])
        for group in groups:
            latest[group.sample.id] = group
            counts[group.sample.id] = counts.get(group.sample.id, 0) + 1
    weights = history.weights(list(history.tallies))
    return [
        Drawn(latest[name], counts[name], tally.step, tally.at(history.step), float(weight))
        for (name, tally), weight in zip(history.tallies.items(), weights, strict=True)
    ]


def prompts_as_json(folder: Path) -> Mapping[str, object]:
    """Every prompt that was drawn, as plain data."""
    return {
        "prompts": [
            {
                "sample": one.latest.sample.id,
                "groups": one.num_groups,
                "last_step": one.last_step,
                "mean_score": one.tally.mean,
                "variance": one.tally.variance,
                "weight": one.weight,
                "prompt": one.latest.prompt_text,
            }
            for one in prompts_of(folder)
        ]
    }


def print_prompts(folder: Path) -> None:
    """Prints the prompts that teach most, the hardest and the easiest."""
    drawn = prompts_of(folder)
    scored = [one for one in drawn if one.tally.mean is not None]
    console = PatientConsole()
    alike = sum(one.tally.variance == 0 for one in drawn)
    console.print(f"{len(drawn)} prompts drawn; {alike} of them without a group whose scores differ")
    console.print(_table("teach most", drawn, lambda one: (-one.weight, 0.0)))
    console.print(_table("hardest", scored, lambda one: (one.tally.mean or 0.0, -one.tally.scored)))
    console.print(_table("easiest", scored, lambda one: (-(one.tally.mean or 0.0), -one.tally.scored)))


def _table(title: str, drawn: list[Drawn], rank: Callable[[Drawn], tuple[float, float]]) -> Table:
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for name in ("sample", "groups", "last step", "mean score", "variance", "weight"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("prompt", overflow="fold")
    for one in sorted(drawn, key=rank)[:_SHOWN]:
        values = (one.num_groups, one.last_step, one.tally.mean, one.tally.variance, one.weight)
        table.add_row(
            escape_text(one.latest.sample.id),
            *(number(value) for value in values),
            question_text(one.latest.sample, one.latest.prompt_text),
        )
    return table
