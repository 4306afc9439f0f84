"""All rules over a run: over its folder at once, or step by step while it goes on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from muster.doctor.collapse import MODE_COLLAPSE, mode_collapse
from muster.doctor.course import Course, HeldOut, settings_of
from muster.doctor.distance import (
    CLIP_SATURATION,
    KL_RUNAWAY,
    SAMPLER_MISMATCH,
    STRANGLED_KL,
    clip_saturation,
    kl_runaway,
    sampler_mismatch,
    strangled_kl,
)
from muster.doctor.facts import StepFacts, facts_of
from muster.doctor.finding import LEVELS, Finding, Kind
from muster.doctor.gradients import DEAD_GRADIENTS, EXPLODING_GRADIENTS, dead_gradients, exploding_gradients
from muster.doctor.hacking import (
    FEW_TOKENS,
    INDEPENDENT_REWARD,
    PART_AT_CEILING,
    REWARD_HACKING,
    few_tokens,
    independent_reward,
    part_at_ceiling,
    reward_hacking,
)
from muster.doctor.lengths import (
    LENGTH_DRIFT,
    LENGTH_REWARD,
    TRUNCATION,
    length_drift,
    length_reward,
    truncation,
)
from muster.doctor.needs import lacking
from muster.doctor.progress import (
    EVALUATION_GAP,
    PLATEAU,
    THROUGHPUT_ROT,
    evaluation_gap,
    plateau,
    throughput_rot,
)
from muster.doctor.signal import (
    NO_SIGNAL,
    REPEATED_DATA,
    REWARD_ERRORS,
    TINY_SPREAD,
    no_signal,
    repeated_data,
    reward_errors,
    tiny_spread,
)
from muster.errors import CheckpointError
from muster.records import StepReport
from muster.stats import mean_of
from muster.store import (
    Line,
    eval_steps,
    read_eval,
    read_events,
    read_metrics,
    read_rollouts,
    read_timings,
    rollout_steps,
)
from muster.store.writer import timings_line

Rule = Callable[[Course], Finding | None]

RULES: Mapping[Kind, Rule] = {
    MODE_COLLAPSE: mode_collapse,
    REWARD_HACKING: reward_hacking,
    INDEPENDENT_REWARD: independent_reward,
    SAMPLER_MISMATCH: sampler_mismatch,
    DEAD_GRADIENTS: dead_gradients,
    EXPLODING_GRADIENTS: exploding_gradients,
    REWARD_ERRORS: reward_errors,
    NO_SIGNAL: no_signal,
    EVALUATION_GAP: evaluation_gap,
    PART_AT_CEILING: part_at_ceiling,
    FEW_TOKENS: few_tokens,
    TRUNCATION: truncation,
    LENGTH_REWARD: length_reward,
    LENGTH_DRIFT: length_drift,
    KL_RUNAWAY: kl_runaway,
    STRANGLED_KL: strangled_kl,
    CLIP_SATURATION: clip_saturation,
    TINY_SPREAD: tiny_spread,
    REPEATED_DATA: repeated_data,
    THROUGHPUT_ROT: throughput_rot,
    PLATEAU: plateau,
}
"""The rule of each kind of finding, the most important first."""

OF_A_WARM_START = frozenset({EXPLODING_GRADIENTS, THROUGHPUT_ROT})
"""Kinds that mean something where answers are given; the others are about samples and their scores."""

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in RULES}
"""By name."""
WARM_START_KINDS = {name: kind for name, kind in KINDS.items() if kind in OF_A_WARM_START}
"""By name, those of a warm start."""

Item = TypeVar("Item")

MAX_LOOKED = 120
"""Steps of a run whose rollouts are read: the first 20, the last 20, and some between."""
MIN_LOOKED = 12
"""And of these at least so many, whatever they cost: a trend needs some."""
MAX_EVERY = 10
"""Steps between examinations of a run that goes on: 1 in a short one, so many from 200 steps on."""
MAX_DELAY = 0.01
"""And never less often than after this share of the steps so far, which keeps a long run's cost small."""
_EDGE = 20


def examine(course: Course) -> list[Finding]:
    """What the rules find that have what they need to look, the most important first."""
    if not course.lines:
        return []
    blind = {unasked.name for unasked in lacking(course)}
    if course.settings.is_warm_start:
        blind |= {kind.name for kind in RULES if kind not in OF_A_WARM_START}
    found = [finding for kind, rule in RULES.items() if kind.name not in blind and (finding := rule(course))]
    return sorted(found, key=lambda finding: -LEVELS.index(finding.level))


def findings(folder: Path) -> list[Finding]:
    """What is wrong with the run in this folder, the most important first; while it is written, too."""
    return examine(course_of(folder))


def course_of(folder: Path, budget_tokens: int | None = None) -> Course:
    """The run in this folder; of a long one, the rollouts of some of its steps.

    `budget_tokens` bounds the rollouts that are read, down to a dozen steps; without it, up to `MAX_LOOKED`
    steps are. A damaged file of rollouts is no reason to say nothing of the others: it is left out, and
    named.
    """
    lines, timings = read_metrics(folder), read_timings(folder)
    written = {line["step"] for line in lines}
    unread: list[str] = []
    there = [step for step in rollout_steps(folder) if step in written]
    steps = chosen_steps(there, _most(timings, budget_tokens))
    evaluated = [step for step in eval_steps(folder) if step in written]
    return Course(
        settings=settings_of(folder),
        lines=_of_training(lines),
        held_out=_each(dict.fromkeys([*evaluated[:1], *evaluated[-1:]]), partial(_held_out, folder), unread),
        timings=timings,
        facts=_each(steps, partial(_read, folder), unread),
        unread=unread,
    )


def _each(steps: Iterable[int], read: Callable[[int], Item], unread: list[str]) -> list[Item]:
    """What is read of each step; of those that can't be read, why not."""
    found: list[Item] = []
    for step in steps:
        try:
            found.append(read(step))
        except CheckpointError as error:
            unread.append(str(error))
    return found


def _of_training(lines: Sequence[Line]) -> list[Line]:
    """Without the evaluation before the first step."""
    return [line for line in lines if "reward" in line or "loss" in line]


def _held_out(folder: Path, step: int) -> HeldOut:
    return HeldOut.of(step, read_eval(folder, step).groups)


def _read(folder: Path, step: int) -> StepFacts:
    stored = read_rollouts(folder, step)
    return facts_of(step, stored.groups, stored.traces)


def _most(timings: Sequence[Line], budget_tokens: int | None) -> int:
    """How many steps of rollouts the budget allows, by the tokens that a step has on average."""
    tokens = mean_of([line.get("tokens") for line in timings])
    if budget_tokens is None or not tokens:
        return MAX_LOOKED
    return max(MIN_LOOKED, min(MAX_LOOKED, int(budget_tokens / tokens)))


def chosen_steps(steps: Sequence[int], most: int = MAX_LOOKED) -> Sequence[int]:
    """All, or the edges, a sixth of `most` at each end, and an even choice between them."""
    if len(steps) <= most:
        return steps
    edge = most // 6
    inner, number = steps[edge:-edge], most - 2 * edge
    return [
        *steps[:edge],
        *(inner[place * len(inner) // number] for place in range(number)),
        *steps[-edge:],
    ]


def _step_of(line: Mapping[str, object]) -> int:
    step = line.get("step")
    return step if isinstance(step, int) else 0


class Watch:
    """Examines a run as it goes on, and tells each finding once."""

    def __init__(self, folder: Path) -> None:
        """For a run that has just begun, or is resumed after the steps its folder holds."""
        course = course_of(folder)
        self._settings = course.settings
        self._lines = list(course.lines)
        self._held_out = list(course.held_out)
        self._timings = list(course.timings)
        self._facts = list(course.facts)
        # What was found at a step that a resume took back is found, and told, again.
        last = _step_of(self._lines[-1]) if self._lines else 0
        self._told = {
            (event.get("name"), event.get("level"))
            for event in read_events(folder)
            if _step_of(event) <= last
        }
        self._next = 0

    def add(self, report: StepReport, *, is_last: bool = False) -> list[Finding]:
        """Takes a step in; what was found that had not been told before."""
        if report.eval:
            self._held_out[1:] = [HeldOut.of(report.step, report.eval.groups)]
        if not report.groups:
            return []
        self._lines.append({"step": report.step, **report.metrics})
        self._timings.append(dict(timings_line(report)))
        self._facts.append(facts_of(report.step, report.groups, report.traces))
        self._thin()
        if report.step < self._next and not is_last:
            return []
        wait = min(MAX_EVERY, report.step // 20)
        self._next = report.step + max(1, wait, int(MAX_DELAY * report.step))
        new = [
            finding for finding in examine(self._course()) if (finding.name, finding.level) not in self._told
        ]
        self._told |= {(finding.name, finding.level) for finding in new}
        return new

    def _course(self) -> Course:
        return Course(
            settings=self._settings,
            lines=self._lines,
            held_out=self._held_out,
            timings=self._timings,
            facts=self._facts,
        )

    def _thin(self) -> None:
        """Lets every second one of the middle go, once there are twice as many as are looked at."""
        if len(self._facts) > 2 * MAX_LOOKED:
            self._facts = [*self._facts[:_EDGE], *self._facts[_EDGE:-_EDGE:2], *self._facts[-_EDGE:]]
