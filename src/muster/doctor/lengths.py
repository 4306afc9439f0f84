"""How long completions are, and what that has to do with their reward."""

import math
import statistics

from muster.doctor.baseline import P, Shift, shift_of, sure_by
from muster.doctor.course import Course
from muster.doctor.facts import Pool
from muster.doctor.finding import Evidence, Finding, Kind
from muster.doctor.telling import by_trend, last_step, numbers_of

TRUNCATION = Kind(
    name="truncation",
    level="warning",
    means="Completions are cut before they end. What was cut can't be right, so the policy is taught to be "
    "short, or, "
    "where cut completions don't count, it learns from the short ones alone.",
    change='Raise sampling.max_tokens, or ask for shorter answers in the prompt. algo.truncated = "penalize" '
    "lowers the "
    "reward gradually before the limit instead of at it. With an environment, model.max_tokens and the "
    "environment's max_turn_tokens cut a rollout, too: raise the one that is met.",
)
LENGTH_DRIFT = Kind(
    name="length-drift",
    level="warning",
    means="Completions become longer, or shorter, than they were at first, and the reward does not rise with "
    "it: the "
    "length follows something in the loss, not the task.",
    change='Take weights that don\'t favour a length (algo.recipe = "dr_grpo" or "dapo"); see whether cut '
    "completions "
    "pull on it (truncation); a KL term (algo.kl_coef) holds it back.",
)
LENGTH_REWARD = Kind(
    name="length-reward",
    level="warning",
    means="Within a group the reward follows the length, and the length follows suit: the policy is paid for "
    "length, "
    "whether or not that was meant.",
    change="Compare the longest and the shortest completions of a group below. If the longer one is not "
    "better, "
    "bound the length in the reward, or judge what was said and not how much.",
)
_LEAST_SHARE = 0.1
_PERSISTENT_SHARE = 0.2
_LEAST_COSTS = 4
_STRONG = 0.3
_ENOUGH = 30
_QUARTER = 0.25


def truncation(course: Course) -> Finding | None:
    """More are cut than at first; or as many as ever, and it costs them their reward."""
    cut = course.shift("completions/clipped_ratio")
    if cut is None or course.settings.has_fixed_length:
        return None
    costs = [facts.cost_of_cut for facts in course.late if facts.cost_of_cut is not None]
    has_grown = cut.rises and cut.late >= max(2 * cut.early, _LEAST_SHARE)
    is_costly = (
        len(costs) >= _LEAST_COSTS and min(costs) > 0 and not cut.falls and cut.late > _PERSISTENT_SHARE
    )
    if not has_grown and not is_costly:
        return None
    limit = f" at {course.settings.max_tokens} tokens" if course.settings.max_tokens else ""
    if course.settings.has_environment:
        limit = " at sampling.max_tokens, at model.max_tokens, or within a turn"
    cost = f"; they score {statistics.fmean(costs):.2g} less than whole ones of their group" if costs else ""
    looked = [facts for facts in course.late if facts.cut]
    return Finding(
        kind=TRUNCATION,
        what=f"{cut.late:.0%} of the completions are cut{limit}, {cut.early:.0%} at first{cost}",
        since=cut.since if has_grown else course.lines[0]["step"],
        sure=cut.sure if has_grown else "likely",
        how=cut.how if has_grown else f"in each of the last {len(costs)} steps cut completions score less",
        evidence=Evidence(
            numbers=numbers_of({"share cut": cut}),
            steps=tuple(facts.step for facts in looked),
            rollouts=looked[-1].cut if looked else (),
        ),
    )


def length_drift(course: Course) -> Finding | None:
    """Length leaves that of the first completions, and the reward does not rise meanwhile."""
    length, reward = course.shift("completions/mean_length"), course.shift("reward")
    if length is None or reward is None or course.settings.has_fixed_length or not course.early:
        return None
    if not (length.rises or length.falls) or not _has_left(course, length) or reward.rises:
        return None
    usual = _usual_deviation(course)
    what = (
        f"mean length went from {length.early:.3g} to {length.late:.3g} tokens (completions differed by "
        f"{usual:.3g} at first), and reward from {reward.early:.3g} to {reward.late:.3g}"
    )
    seen = last_step(course, lambda facts: facts.longest)
    return by_trend(course, LENGTH_DRIFT, what, {"length": length}, beside={"reward": reward}, evidence=seen)


def length_reward(course: Course) -> Finding | None:
    """In the last half, length and reward go together within groups, and the length moves that way."""
    half = course.facts[len(course.facts) // 2 :]
    pool = Pool()
    for facts in half:
        pool = pool.plus(facts.length_with_score)
    r = pool.correlation
    length, recent = (
        course.shift("completions/mean_length"),
        shift_of(course.series("completions/mean_length").last(0.6)),
    )
    if r is None or length is None or recent is None or pool.degrees < _ENOUGH or not course.early:
        return None
    # Fisher's transformation: atanh(r) is normal, with a variance of 1 over the degrees of freedom less 2.
    p = math.erfc(math.atanh(min(abs(r), 0.999999)) * math.sqrt(pool.degrees - 2) / math.sqrt(2.0))
    follows = (recent.rises and length.rises) if r > 0 else (recent.falls and length.falls)
    if abs(r) < _STRONG or p >= P or not follows or not _has_left(course, length):
        return None
    last = half[-1]
    return Finding(
        kind=LENGTH_REWARD,
        what=f"within groups, reward and length correlate with {r:.2f}, and mean length went from "
        f"{length.early:.3g} to "
        f"{length.late:.3g} tokens",
        since=length.since,
        sure=sure_by(p),
        how=f"correlation over {pool.degrees} rollouts, p = {p:.1g}",
        evidence=Evidence(
            numbers=numbers_of({"length": length}) | {"correlation": r},
            steps=(last.step,),
            rollouts=last.longest,
        ),
    )


def _usual_deviation(course: Course) -> float:
    """By how many tokens the first completions of a step differed."""
    return statistics.median(facts.lengths.deviation for facts in course.early if facts.lengths)


def _has_left(course: Course, length: Shift) -> bool:
    """By a quarter of the first length, and by half of what the first completions differed by."""
    moved = abs(length.late - length.early)
    return moved > max(_QUARTER * length.early, _usual_deviation(course) / 2)
