"""The doctor's rules over whatever the inspector shows: other trainers' folders, too."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from muster.doctor import (
    Course,
    Finding,
    Settings,
    StepFacts,
    Unasked,
    chosen_steps,
    course_of,
    examine,
    facts_of,
    lacking,
)
from muster.errors import CheckpointError, MusterError
from muster.records import Completion, Group, Prompt, Rollout, Sample, Score, StreamKey, Trace
from muster.store import Line
from muster.view import foreign
from muster.view.curves import number_of
from muster.view.sources import Source

BUDGET_TOKENS = 1_000_000
"""Of the rollouts that are read for a quick answer: all of a small run, a dozen steps of a large one."""
ODD = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""What reading raises where a folder's files hold what no trainer wrote."""


class Examined(NamedTuple):
    """What the doctor says of a run now."""

    course: Course
    findings: Sequence[Finding]
    unasked: Sequence[Unasked]
    """Rules that could not look; empty for a run of Muster with its rollouts, which lacks by choice."""


def examined(source: Source, budget_tokens: int | None = None) -> Examined:
    """Asks all rules of a run; `budget_tokens` bounds the rollouts that are read."""
    try:
        course = _course(source, budget_tokens)
        found = examine(course)
    except MusterError:
        raise
    except ODD as error:
        raise CheckpointError(
            f"{source.folder} holds what no run wrote ({type(error).__name__}: {error}). Restore its files."
        ) from error
    is_whole = source.kind == "muster" and (course.facts or not course.lines)
    return Examined(course, found, () if is_whole else lacking(course))


def _course(source: Source, budget_tokens: int | None) -> Course:
    if source.kind == "muster":
        return course_of(source.folder, budget_tokens)
    is_trl = source.kind == "trl"
    log = foreign.log_lines(source.folder) if is_trl else foreign.PlainMetrics(source.folder).look()
    facts, unread = _looked_at(source.folder, log) if is_trl else ([], [])
    return Course(
        settings=Settings(),
        lines=[_numbers(line, is_trl=is_trl) for line in log],
        held_out=(),
        timings=(),
        facts=facts,
        unread=unread,
        has_rows=False,
    )


def _numbers(line: Line, *, is_trl: bool) -> Line:
    """The line's numbers; what TRL calls `kl` is the mean of k3."""
    numbers = {key: number_of(value) for key, value in line.items()} | {"step": int(line["step"])}
    return numbers | ({"kl_k3": numbers["kl"]} if is_trl and "kl" in numbers else {})


def _looked_at(folder: Path, log: Sequence[Line]) -> tuple[list[StepFacts], list[str]]:
    """What the completions of some of TRL's steps show; of files that can't be read, why not."""
    files = foreign.completion_files(folder)
    facts: list[StepFacts] = []
    unread: list[str] = []
    for step in chosen_steps(sorted(files)):
        try:
            groups, traces = _groups(step, foreign.completion_rows(files[step], log))
            facts.append(facts_of(step, groups, traces))
        except MusterError as error:
            unread.append(str(error))
    return facts, unread


def _groups(step: int, rows: Sequence[Line]) -> tuple[list[Group], list[list[Trace]]]:
    """TRL's rows as groups; their texts stand for the tokens that aren't there."""
    groups: list[Group] = []
    traces: list[list[Trace]] = []
    for slot, (name, members) in enumerate(groupby(rows, key=lambda row: row["group_id"])):
        some = list(members)
        prompt = str(some[0]["prompt_text"])
        groups.append(
            Group(
                id=str(name),
                sample=Sample(id=prompt, text=prompt),
                prompt=Prompt(ids=(), key=StreamKey(0, step, slot, 0)),
                prompt_text=prompt,
                rollouts=tuple(_rollout(row) for row in some),
            )
        )
        traces.append(
            [Trace(reward=None, advantage=number_of(row["advantage"]) or 0.0, mask=()) for row in some]
        )
    return groups, traces


def _rollout(row: Line) -> Rollout:
    return Rollout(
        completion=Completion(ids=(), sampler_logprobs=(), finish_reason="stop", version=0),
        text=str(row["completion_text"]),
        score=Score(value=number_of(row["score"])),
    )
