"""What a run has come to: held-out reward and completions before and after, and what to do next."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.output import PatientConsole, program
from muster.cli.samples import completion_text, group_table, question_text, reward_text
from muster.cli.text import escape_text, number, percent
from muster.clock import step_seconds
from muster.records import EvalReport, Group
from muster.store import (
    Line,
    eval_steps,
    held_out_score,
    read_eval,
    read_metrics,
    read_timings,
    to_json,
)

NUM_PAIRS = 3


class Pair(NamedTuple):
    """The same held-out prompt at two steps."""

    before: Group
    after: Group


def print_outcome(folder: Path, console: Console) -> None:
    """Prints what the run in this folder has come to."""
    if told := ahead_line(read_timings(folder)):
        console.print(Text(told), soft_wrap=True)
    lines = {line["step"]: line for line in read_metrics(folder) if held_out_score(line) is not None}
    if lines:
        first, last = min(lines), max(lines)
        if lines[last].get("eval_reward") is None:
            for step in dict.fromkeys((first, last)):
                text = f"held-out loss at step {step}: {held_out_loss(lines[step])}"
                console.print(Text(text), soft_wrap=True)
        elif last == first:
            console.print(held_out_text(f"held-out reward (step {first})", lines[first]))
        else:
            console.print(held_out_text(f"held-out reward before (step {first})", lines[first]))
            console.print(held_out_text(f"held-out reward after  (step {last})", lines[last]))
            console.print(pairs_table(pairs(folder), first, last))
    for line in next_commands(folder):
        console.print(Text(line), soft_wrap=True)


def ahead_line(lines: Sequence[Line]) -> str:
    """What sampling ahead gained, in a sentence; empty for a run that takes turns.

    In turns the steps would have waited for what was sampled beside them, too: as long as it took here.
    """
    if not any("ahead_s" in line for line in lines):
        return ""
    beside = sum(line.get("ahead_s", 0.0) for line in lines)
    waited = sum(line["seconds"].get("sample", 0.0) for line in lines)
    took = sum(step_seconds(line["seconds"]) for line in lines)
    return (
        f"ahead: {number(beside)} s of sampling ran beside the steps, which waited {number(waited)} s for "
        f"it: they took {number(took)} s instead of {number(took + beside)} s in turns at the same pace, "
        f"{percent(beside / (took + beside))} saved"
    )


def held_out_text(title: str, metrics: Mapping[str, object]) -> Text:
    """Held-out reward with its interval, and pass@k where it was measured."""
    low, high = metrics.get("eval_reward/low"), metrics.get("eval_reward/high")
    text = Text(f"{title}: ").append(number(metrics.get("eval_reward")), style="bold")
    if low is not None and high is not None:
        text.append(f"  (95 % interval {number(low)} to {number(high)})", style="dim")
    for name, value in metrics.items():
        if name.startswith("eval_pass@"):
            text.append(f"  {name.removeprefix('eval_')} {number(value)}")
    return text


def held_out_loss(metrics: Mapping[str, object]) -> str:
    """Held-out loss of given answers, with what makes it readable and on how much it rests."""
    shown = {"perplexity": "eval_perplexity", "token accuracy": "eval_mean_token_accuracy"}
    others = ", ".join(f"{name} {number(metrics.get(key))}" for name, key in shown.items())
    counts = f"{metrics.get('eval_num_completions')} answers, {metrics.get('eval_num_tokens')} tokens"
    return f"{number(metrics.get('eval_loss'))} ({others}; {counts})"


def pairs(folder: Path) -> list[Pair]:
    """The first held-out prompts as they were answered at the first and at the last evaluation."""
    steps = eval_steps(folder)
    if len(steps) < 2:
        return []
    after = {group.sample.id: group for group in read_eval(folder, steps[-1]).groups}
    before = [group for group in read_eval(folder, steps[0]).groups if group.sample.id in after]
    return [Pair(group, after[group.sample.id]) for group in before[:NUM_PAIRS]]


def pairs_table(shown: list[Pair], first: int, last: int) -> Table:
    """Completions side by side, each pair under its prompt."""
    table = Table(show_lines=True, expand=True)
    table.add_column("prompt", ratio=2, overflow="fold")
    table.add_column(f"before (step {first})", ratio=3, overflow="fold")
    table.add_column(f"after (step {last})", ratio=3, overflow="fold")
    for pair in shown:
        table.add_row(
            question_text(pair.after.sample, pair.after.prompt_text),
            answer_text(pair.before),
            answer_text(pair.after),
        )
    return table


def answer_text(group: Group) -> Text:
    """The first completion with its reward."""
    rollout = group.rollouts[0]
    return Text.assemble(reward_text(rollout), "\n", completion_text(rollout, limit=300))


def next_commands(folder: Path) -> list[str]:
    """What to try now: after a warm start, to train from it."""
    name, run = program(), shlex.quote(escape_text(str(folder)))
    lines = read_metrics(folder)
    is_warm_start = bool(lines) and "loss" in lines[-1] and "reward" not in lines[-1]
    flag = "adapter" if (folder / "final" / "adapter_config.json").is_file() else "path"
    return [
        "Next:",
        f"  {name} show {run}",
        f'  {name} generate {run} "..." -n 4',
        f"  {name} train RUN.toml --model.{flag} {run}/final" if is_warm_start else f"  {name} eval {run}",
    ]


def print_evaluation(report: EvalReport, *, as_json: bool) -> None:
    """Prints held-out results, with the completions of the first prompts."""
    if as_json:
        print(to_json(report.metrics))
        return
    console = PatientConsole()
    console.print(held_out_text("held-out reward", report.metrics))
    for group in report.groups[:NUM_PAIRS]:
        console.print(group_table(group, ()))
