"""Groups and rewards that teach little or nothing."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from muster.doctor.baseline import P, shift_of, sure_by
from muster.doctor.course import Course
from muster.doctor.facts import GroupFacts, StepFacts
from muster.doctor.finding import Evidence, Finding, GroupRef, Kind

NO_SIGNAL = Kind(
    name="no-signal",
    level="warning",
    means="Where all rewards of a group are equal there is no advantage, and sampling it taught nothing. All "
    "wrong: the "
    "prompts are out of reach, or the reward misses right answers. All right: they are mastered.",
    change="All wrong: read some completions, then give steps on the way (a graded reward), easier prompts "
    "(data.path) or "
    "larger groups (sampling.group_size). All right: harder prompts, or end the run. In both cases "
    'data.draw = "by_signal" and algo.resample draw prompts that still differ.',
)
TINY_SPREAD = Kind(
    name="tiny-spread",
    level="warning",
    means="Most groups differ only by a sliver of what rewards differed by at first, and dividing by the "
    "group's "
    "standard deviation makes that sliver as loud as a real difference: the run now learns the reward's last "
    "digits.",
    change="Take out of the reward what makes the small differences (a tie-breaker, a length term), round "
    "it, or don't "
    'divide by the spread: algo.advantage = "center", or algo.recipe = "dr_grpo".',
)
REPEATED_DATA = Kind(
    name="repeated-data",
    level="warning",
    means="Rows of the data have the same prompt: it is trained on more often than the data seems to say, "
    "and a held-out "
    "set from the same source may hold it too.",
    change="Take copies out of data.path, and check data.eval_path against it.",
)
REWARD_ERRORS = Kind(
    name="reward-errors",
    level="warning",
    means="A rollout whose reward fails leaves its group. If failing depends on the text, what is left is a "
    "biased sample, "
    "and a policy can learn to avoid being judged.",
    change="Mend what the reward says below; let it give a low number, or None to abstain, for texts it "
    "can't read. "
    "reward.max_failed_share says how much of this a run puts up with.",
)
_LEAST_GROUPS = 6
_SLIVER = 0.05
_COPIES = 0.1
_LEAST_ROWS = 10
_LONG = 40


def no_signal(course: Course) -> Finding | None:
    """In the last steps, more than half of the groups have equal rewards, beyond what chance explains."""
    judged = [group for facts in course.late for group in facts.groups if group.scores]
    equal = [group for group in judged if group.scores and group.scores.deviation == 0]
    p = _binomial_tail(len(equal), len(judged), 0.5)
    if not judged or p >= P:
        return None
    right, wrong = _sides(course, equal)
    prompts = Counter(group.ref.sample for group in equal)
    often = ", ".join(f"{_short(sample)} ({count} times)" for sample, count in prompts.most_common(3))
    shares = course.series("frac_reward_zero_std")
    shift = shift_of(shares)
    has_grown = shift is not None and shift.rises
    return Finding(
        kind=NO_SIGNAL,
        what=f"{len(equal)} of the last {len(judged)} groups have equal rewards: {right} all right, {wrong} "
        "all wrong"
        f"; most often row {often}",
        since=shift.since
        if shift and has_grown
        else (shares.steps[0] if shares.steps else equal[0].ref.step),
        sure=sure_by(p),
        how=f"{len(equal)} of {len(judged)} groups, binomial against one half, p = {p:.1g}",
        evidence=Evidence(
            numbers={"groups": len(judged), "equal": len(equal), "all right": right, "all wrong": wrong},
            steps=tuple(dict.fromkeys(group.ref.step for group in equal)),
            groups=_some(equal),
        ),
        is_mild=right > len(equal) / 2,
    )


def _short(sample: str) -> str:
    """A row's id; the end of a prompt where rows aren't known, since prompts begin alike."""
    return sample if len(sample) <= _LONG else f"...{sample[-_LONG:]}"


def _sides(course: Course, equal: Sequence[GroupFacts]) -> tuple[int, int]:
    """How many of the groups have the best score of the run, and how many the worst."""
    known = [g for facts in course.facts for g in facts.groups]
    lowest = min((g.lowest for g in known if g.lowest is not None), default=0.0)
    highest = max((g.highest for g in known if g.highest is not None), default=0.0)
    values = [group.highest for group in equal if group.highest is not None]
    right = sum(value >= highest > min(lowest, 0.0) for value in values)
    wrong = sum(value <= max(lowest, 0.0) and value < max(highest, 1e-12) for value in values)
    return (right, wrong) if highest > lowest else (right if highest > 0 else 0, wrong)


def _binomial_tail(hits: int, tries: int, rate: float) -> float:
    """Chance of at least so many hits."""
    return math.fsum(
        math.comb(tries, count) * rate**count * (1 - rate) ** (tries - count)
        for count in range(hits, tries + 1)
    )


def _some(groups: Sequence[GroupFacts]) -> tuple[GroupRef, ...]:
    return tuple(group.ref for group in groups[-3:])


def tiny_spread(course: Course) -> Finding | None:
    """Groups whose rewards differ by less than a twentieth of what they did at first, at full advantage."""
    usual = [
        s.deviation for facts in course.early for g in facts.groups if (s := g.scores) and s.deviation > 0
    ]
    if not usual:
        return None
    scale = statistics.median(usual)
    late = [g for facts in course.late for g in facts.groups if g.scores and g.scores.deviation > 0]
    tiny = [g for g in late if _is_tiny(g, scale)]
    p = _binomial_tail(len(tiny), len(late), 0.25)
    if len(tiny) < _LEAST_GROUPS or len(tiny) < len(late) / 2 or p >= P:
        return None
    share = course.of_facts(lambda facts: float(any(_is_tiny(g, scale) for g in facts.groups)))
    now = statistics.median(g.scores.deviation for g in tiny if g.scores)
    return Finding(
        kind=TINY_SPREAD,
        what=f"in {len(tiny)} of the last {len(late)} groups with any difference, rewards differ by "
        f"{now:.2g}, against "
        f"{scale:.2g} at first, and still have advantages up to {max(g.largest_advantage for g in tiny):.2g}",
        since=next(step for step, value in zip(*share) if value),
        sure=sure_by(p),
        how=f"{len(tiny)} of {len(late)} groups, binomial against a quarter, p = {p:.1g}",
        evidence=Evidence(
            numbers={"deviation at first": scale, "deviation now": now},
            steps=tuple(dict.fromkeys(g.ref.step for g in tiny)),
            groups=_some(tiny),
        ),
    )


def _is_tiny(group: GroupFacts, scale: float) -> bool:
    """A spread too small beside the run's own, made large again by its own size."""
    spread = group.scores.deviation if group.scores else 0.0
    return 0 < spread < _SLIVER * scale and group.largest_advantage > max(10 * spread, 0.5)


def repeated_data(course: Course) -> Finding | None:
    """Different rows of the data with one prompt; a run on one prompt is meant so."""
    rows: dict[int, dict[str, GroupRef]] = {}
    for facts in course.facts:
        for group in facts.groups:
            rows.setdefault(group.prompt, {}).setdefault(group.ref.sample, group.ref)
    number = sum(len(samples) for samples in rows.values())
    copies = [samples for samples in rows.values() if len(samples) > 1]
    extra = sum(len(samples) - 1 for samples in copies)
    if len(rows) < 2 or number < _LEAST_ROWS or extra < _COPIES * number:
        return None
    worst = max(copies, key=len)
    return Finding(
        kind=REPEATED_DATA,
        what=f"{extra} of the {number} rows drawn so far repeat the prompt of another; one prompt stands in "
        f"{len(worst)} rows: " + ", ".join(list(worst)[:5]),
        since=min(ref.step for samples in copies for ref in list(samples.values())[1:]),
        sure="certain",
        how="counted by the prompt's text",
        evidence=Evidence(
            numbers={"rows": number, "copies": extra, "prompts": len(rows)},
            groups=tuple(list(worst.values())[:3]),
        ),
    )


def reward_errors(course: Course) -> Finding | None:
    """Rewards fail in the last steps, and did so in more than one step."""
    series = course.series("rollouts/failed")
    failing = [step for step, count in zip(*series) if count]
    looked: Sequence[StepFacts] = [facts for facts in course.facts if facts.failed]
    recent = {facts.step for facts in course.late}
    if len(failing) < 2 or not recent.intersection(failing) or not looked:
        return None
    sampled = int(sum(course.series("num_completions").values))
    total = int(sum(series.values))
    reasons = Counter[str]()
    for facts in looked:
        reasons.update(facts.failures)
    reason, _ = reasons.most_common(1)[0]
    shift = shift_of(series)
    grows = shift is not None and shift.rises
    return Finding(
        kind=REWARD_ERRORS,
        what=f"{total} of {sampled} rollouts could not be scored, in {len(failing)} steps"
        + (", more and more" if grows else "")
        + f"; most often: {reason}",
        since=failing[0],
        sure="certain",
        how="counted",
        evidence=Evidence(
            numbers={"failed": total, "rollouts": sampled, "reason": reason},
            steps=tuple(failing[-5:]),
            rollouts=looked[-1].failed,
        ),
    )
