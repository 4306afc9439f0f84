"""Rollouts on a terminal."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from muster.cli.text import escape_block, escape_text, number, shortened
from muster.records import Group, Rollout, Sample, StepReport, Trace

_PROMPT_LIMIT = 300
_TEXT_LIMIT = 500
SOLVED = 1.0
"""A reward from which on a completion counts as right."""


class Seen(NamedTuple):
    """A rollout with what belongs to it."""

    group: Group
    rollout: Rollout
    trace: Trace | None


def rollouts_of(groups: Sequence[Group], traces: Sequence[Sequence[Trace]]) -> list[Seen]:
    """Every rollout that has a reward, with its group and trace."""
    return [
        Seen(group, rollout, traces[place][index] if traces else None)
        for place, group in enumerate(groups)
        for index, rollout in enumerate(group.rollouts)
        if rollout.score.value is not None
    ]


def good_and_bad(seen: Sequence[Seen]) -> list[Seen]:
    """The best rollout and the worst, and up to two more that reached 1, from other prompts."""
    if not seen:
        return []
    ranked = sorted(seen, key=_score, reverse=True)
    picked = [ranked[0]]
    for one in ranked[1:]:
        is_new = one.group.id not in {other.group.id for other in picked}
        if len(picked) < 3 and is_new and _score(one) >= SOLVED:
            picked.append(one)
    return [*picked, ranked[-1]] if _score(ranked[-1]) < _score(ranked[0]) else picked


def _score(seen: Seen) -> float:
    return seen.rollout.score.value or 0.0


def step_table(report: StepReport) -> Table:
    """A good and a bad sample of the step; those that reached 1 are said to have. Or the step's answers."""
    if is_given(report.groups):
        return answers_table(report.groups, report.traces, f"step {report.step}: answers")
    seen = rollouts_of(report.groups, report.traces)
    solved = sum(_score(one) >= SOLVED for one in seen)
    title = f"step {report.step}: samples, {solved} of {len(seen)} reached 1.0"
    return samples_table(good_and_bad(seen), title)


def samples_table(seen: Sequence[Seen], title: str) -> Table:
    """One row per rollout: its numbers, its prompt, its text."""
    has_reference = any(one.trace and one.trace.ref_logprobs for one in seen)
    table = Table(title=Text(title), title_justify="left", show_lines=True, expand=True)
    for name in ("reward", "advantage", *(["ref logprob"] if has_reference else [])):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("prompt", ratio=2, overflow="fold")
    table.add_column("completion", ratio=3, overflow="fold")
    for one in seen:
        reference = [_reference(one.trace)] if has_reference else []
        table.add_row(
            reward_text(one.rollout),
            number(one.trace.advantage if one.trace else None),
            *reference,
            question_text(one.group.sample, one.group.prompt_text),
            completion_text(one.rollout),
        )
    return table


def is_given(groups: Sequence[Group]) -> bool:
    """The completions were given as answers to learn: nothing scored them."""
    return all(not rollout.score.parts for group in groups for rollout in group.rollouts)


def answers_table(groups: Sequence[Group], traces: Sequence[Sequence[Trace]], title: str) -> Table:
    """The answer that the policy found least likely before the update, token by token, and the likeliest."""
    seen = [Seen(group, group.rollouts[0], members[0]) for group, members in zip(groups, traces, strict=True)]
    ranked = sorted(seen, key=_logprob)
    table = Table(title=Text(title), title_justify="left", show_lines=True, expand=True)
    table.add_column("mean logprob", justify="right", no_wrap=True)
    table.add_column("prompt", ratio=2, overflow="fold")
    table.add_column("answer", ratio=3, overflow="fold")
    for one in (ranked[0], ranked[-1]) if len(ranked) > 1 else ranked:
        asked = question_text(one.group.sample, one.group.prompt_text)
        table.add_row(number(_logprob(one)), asked, completion_text(one.rollout))
    return table


def _logprob(seen: Seen) -> float:
    """Mean log-probability of the tokens that are learned."""
    trace = seen.trace
    counting = [value for value, counts in zip(trace.logprobs, trace.mask) if counts] if trace else []
    return sum(counting) / len(counting) if counting else 0.0


def _reference(trace: Trace | None) -> str:
    """Log-probability of the whole completion under the reference."""
    return number(sum(trace.ref_logprobs) if trace and trace.ref_logprobs else None)


def reward_text(rollout: Rollout) -> Text:
    """The score, in green where it reached 1; why there is none where it failed."""
    score = rollout.score
    if not score.parts and not score.failures:
        return Text("-", style="dim")
    if score.value is None:
        return Text("failed" if score.is_failure else "abstained", style="red")
    return Text(number(score.value), style="bold green" if score.value >= SOLVED else "")


def completion_text(rollout: Rollout, limit: int = _TEXT_LIMIT) -> Text:
    """The completion, escaped, cut in its middle where it is long; `(cut)` where it hit its limit."""
    text = Text(escape_block(shortened(rollout.text, limit)))
    return text.append(" (cut)", style="yellow") if rollout.completion.is_truncated else text


def spoken_text(rollout: Rollout, limit: int) -> Text:
    """The completion; of an episode turn by turn, each under who spoke."""
    episode = rollout.episode
    if episode is None:
        return completion_text(rollout, limit=limit)
    text = Text()
    turn = 0
    for message in episode.messages:
        is_own = message.get("role") == "assistant"
        turn += is_own
        name = f"turn {turn}" if is_own else escape_text(str(message.get("role")))
        said = escape_block(shortened(str(message.get("content")), limit))
        text.append(f"{name}: ", style="bold" if is_own else "dim")
        text.append(f"{said}\n", style="" if is_own else "dim")
    if episode.parts:
        given = ", ".join(f"{escape_text(name)} {number(value)}" for name, value in episode.parts.items())
        text.append(f"environment: {given}", style="dim")
    if episode.failure is not None:
        text.append(f"environment: {escape_block(episode.failure)}", style="red")
    return text.append(" (cut)", style="yellow") if rollout.completion.is_truncated else text


def question_text(sample: Sample, prompt_text: str) -> Text:
    """What was asked: the last message where the prompt is a chat, else the raw text."""
    content = sample.messages[-1].get("content") if sample.messages else sample.text
    asked = content if isinstance(content, str) else prompt_text
    return Text(escape_block(shortened(asked, _PROMPT_LIMIT)), style="dim")


def group_table(group: Group, traces: Sequence[Trace]) -> Table:
    """All rollouts of a group, in full."""
    prompt = escape_text(group.prompt_text)
    table = Table(title=Text(f"group {group.id}, sample {group.sample.id}\n{prompt}"), title_justify="left")
    table.show_lines = True
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("advantage", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("completion", overflow="fold")
    for place, rollout in enumerate(group.rollouts):
        table.add_row(
            reward_text(rollout),
            number(traces[place].advantage if traces else None),
            str(rollout.completion.num_emitted),
            spoken_text(rollout, limit=10_000),
        )
    return table
