"""A reward on trial: what it says of completions whose verdict is known, and how long it takes to say it."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.records import Completion, GradingRequest, Sample, Score
from muster.rewards.calling import prompt_text
from muster.rewards.grading import Grader
from muster.rewards.probes import NOTES, Duty, Probe, Subject, probes, rows_of, subject_of
from muster.rewards.reward import Reward

_SHOWN = 60
_NO_TOKENS = Completion(ids=(), sampler_logprobs=(), finish_reason="stop", version=0)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One kind of completion, tried on all rows."""

    probe: str
    duty: Duty
    tried: int
    wrong: int
    """False accepts of what must fail, false rejects of what must pass."""
    abstained: int
    failed: int
    lowest: float | None
    highest: float | None
    """Of the scores that were given; None where there was none."""
    example: str
    """The start of a completion that was judged wrongly, or why one failed; empty where there is none."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one reward."""

    reward: str
    findings: tuple[Finding, ...]
    note: str
    """What the probes can't show of this reward; empty where there is nothing to say."""
    median_s: float
    max_s: float
    """Seconds per call, the way to the process that it runs in included."""
    slowest: str
    """The probe that took longest."""

    @property
    def false_accepts(self) -> int:
        """Completions that must fail and were accepted."""
        return sum(found.wrong for found in self.findings if found.duty == "must fail")

    @property
    def false_rejects(self) -> int:
        """Completions that must pass and were not accepted."""
        return sum(found.wrong for found in self.findings if found.duty == "must pass")

    @property
    def failed(self) -> int:
        """Completions on which the reward failed."""
        return sum(found.failed for found in self.findings)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One probe on one row."""

    probe: Probe
    value: float | None
    failure: str | None
    seconds: float


def try_reward(
    reward: Reward,
    grader: Grader,
    samples: Sequence[Sample],
    *,
    answer: str = "answer",
    accept: float = 1.0,
) -> Verdict:
    """The verdict on a reward, from rows whose reference is in the column `answer`.

    A completion is accepted where its score is at least `accept`. `grader` runs this reward alone.
    """
    subject = subject_of(reward)
    sources = [_source(reward, sample) for sample in samples]
    rows = rows_of(sources, [sample.columns.get(answer) for sample in samples])
    tried = [
        _tried(grader, reward.name, sample, probe)
        for sample, row in zip(samples, rows, strict=True)
        for probe in probes(row, subject)
    ]
    slowest = max(tried, key=lambda one: one.seconds)
    return Verdict(
        reward=reward.name,
        findings=tuple(_findings(tried, subject, accept)),
        note=_note(subject, answer, has_answers=any(row.answer is not None for row in rows)),
        median_s=statistics.median(one.seconds for one in tried),
        max_s=slowest.seconds,
        slowest=slowest.probe.name,
    )


def _source(reward: Reward, sample: Sample) -> str:
    """The text that is asked about: a column where the reward reads one, else the prompt."""
    column = reward.options.get("text")
    if "text" in reward.column_options and isinstance(column, str):
        return str(sample.columns.get(column) or "")
    return prompt_text(sample)


def _tried(grader: Grader, name: str, sample: Sample, probe: Probe) -> Tried:
    request = GradingRequest(
        sample=sample,
        prompt_text=prompt_text(sample),
        completion=_NO_TOKENS,
        text=probe.text,
        plain_text=probe.text,
    )
    start = time.perf_counter()
    score: Score = grader.grade([request])[0]
    seconds = time.perf_counter() - start
    return Tried(probe=probe, value=score.parts.get(name), failure=score.failures.get(name), seconds=seconds)


def _findings(tried: Sequence[Tried], subject: Subject, accept: float) -> list[Finding]:
    """One finding per kind of completion, in the order in which they were tried."""
    kinds = dict.fromkeys((one.probe.name, one.probe.duty) for one in tried)
    groups = [[one for one in tried if (one.probe.name, one.probe.duty) == kind] for kind in kinds]
    return [_finding(group, _judge(subject, accept)) for group in groups]


def _judge(subject: Subject, accept: float) -> Callable[[Tried], bool]:
    """Whether a verdict is wrong; an abstention or a failure accepts nothing and rejects nothing."""

    def is_wrong(one: Tried) -> bool:
        if one.value is None or subject == "none":
            return False
        return (one.value >= accept) == (one.probe.duty == "must fail")

    return is_wrong


def _finding(group: Sequence[Tried], is_wrong: Callable[[Tried], bool]) -> Finding:
    wrong = [one for one in group if is_wrong(one)]
    failed = [one for one in group if one.failure is not None]
    values = [one.value for one in group if one.value is not None]
    probe = group[0].probe
    return Finding(
        probe=probe.name,
        duty=probe.duty,
        tried=len(group),
        wrong=len(wrong),
        abstained=len(group) - len(failed) - len(values),
        failed=len(failed),
        lowest=min(values, default=None),
        highest=max(values, default=None),
        example=wrong[0].probe.text[:_SHOWN] if wrong else failed[0].failure or "" if failed else "",
    )


def _note(subject: Subject, answer: str, *, has_answers: bool) -> str:
    missing = f"the rows have no reference in a column {answer!r}: nothing must pass"
    needs_answer = subject in ("answer", "code")
    return "; ".join(
        part for part in (NOTES[subject], "" if has_answers or not needs_answer else missing) if part
    )
