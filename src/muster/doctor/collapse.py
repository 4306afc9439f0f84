"""The policy has stopped trying different things."""

from muster.doctor.baseline import Shift
from muster.doctor.course import Course
from muster.doctor.facts import StepFacts
from muster.doctor.finding import Finding, Kind
from muster.doctor.telling import by_trend, has_halved, last_step, repetition, went
from muster.stats import mean_of

MODE_COLLAPSE = Kind(
    name="mode-collapse",
    level="serious",
    means="The policy has settled on one text, whatever it is asked. Where all completions of a group are "
    "the same there "
    "is nothing to compare, so the run can't find its way back by itself.",
    change="Resume from a checkpoint before it began, with a KL term (algo.kl_coef, 0.05 to 0.25 to begin "
    "with) or "
    "a lower optim.lr; with a bonus for entropy (algo.entropy_coef) if it comes back. Look first at what the "
    "reward "
    "pays for: the text that won is the answer to it.",
)


def mode_collapse(course: Course) -> Finding | None:
    """Diversity or entropy has halved, and not for being right: texts repeat or ignore the prompt."""
    narrowing = {
        "entropy": course.shift("entropy"),
        "distinct completions of a group": course.shift_of_facts(distinct_share),
    }
    narrowed = {name: shift for name, shift in narrowing.items() if has_halved(shift)}
    signs = _signs(course)
    if not narrowed or not signs:
        return None
    shifts = {**narrowed, **signs}
    seen = last_step(course, lambda facts: facts.twins or facts.repetitive)
    return by_trend(course, MODE_COLLAPSE, went(shifts), shifts, evidence=seen)


def _signs(course: Course) -> dict[str, Shift]:
    """What tells a collapse from a policy that has become sure of right answers."""
    highest = max((g.highest for f in course.facts for g in f.groups if g.highest is not None), default=0.0)
    same = course.shift_of_facts(lambda facts: facts.same_mode)
    stuck = course.shift_of_facts(lambda facts: _stuck_share(facts, highest))
    signs = dict(repetition(course))
    if same and same.rises and same.late >= 1.0:
        signs["share of prompts that get the same completion"] = same
    if stuck and stuck.rises and stuck.late > 0.5:
        signs["share of groups that are one text and not the best"] = stuck
    return signs


def _stuck_share(facts: StepFacts, highest: float) -> float | None:
    return mean_of(
        [
            float(group.num_distinct == 1 and group.scores is not None and group.scores.mean < highest)
            for group in facts.groups
        ]
    )


def distinct_share(facts: StepFacts) -> float | None:
    """Different completions as a share of all, prompt by prompt."""
    whole = sum(group.num_rollouts for group in facts.groups)
    return sum(group.num_distinct for group in facts.groups) / whole if whole else None
