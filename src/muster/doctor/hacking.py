"""The reward rises, but not what it was meant to measure."""

import statistics

from muster.doctor.baseline import Shift, shift_of
from muster.doctor.course import Course
from muster.doctor.facts import Pool, StepFacts
from muster.doctor.finding import Finding, Kind
from muster.doctor.telling import by_trend, last_step, repetition, went

REWARD_HACKING = Kind(
    name="reward-hacking",
    level="serious",
    means="The reward rises while the texts become what no reader would call better: unlikely to the model "
    "that "
    "training started from, repeating themselves, or running to the limit. The reward pays for something "
    "else than was meant.",
    change="Read the best completions below and ask what each was paid for; close that hole in reward.use, "
    "and try "
    "it on these texts with `muster reward test`. A KL term (algo.kl_coef) slows the drift down, it does not "
    "mend the reward.",
)
INDEPENDENT_REWARD = Kind(
    name="independent-reward",
    level="serious",
    means="The reward that is trained on rises while one that is only watched, with a weight of 0, falls: "
    "the two came apart, and training follows the one that is easier to please.",
    change="Take a checkpoint from before they came apart. Then give the watched reward a weight in "
    "reward.weights, "
    "or mend the trained one so that it can't be had without the other.",
)
PART_AT_CEILING = Kind(
    name="part-at-ceiling",
    level="warning",
    means="One part of the reward is earned by all, and another, which still tells better from worse, does "
    "not rise: "
    "the policy took the easy part and stayed there.",
    change="Lower the weight of the part that is earned (reward.weights), or multiply the parts in one "
    "reward so that "
    'it counts only beside the other; algo.advantage and reward.combine = "normalize_then_sum" give each '
    "part the same say.",
)
FEW_TOKENS = Kind(
    name="few-tokens",
    level="warning",
    means="One token explains most of the differences in reward within the groups, and now makes up much of "
    "the text: "
    "the reward can be had by writing it, and the policy does.",
    change="See whether that token is the task. If not, take it out of what the reward counts, or bound how "
    "much of it pays.",
)
# A text may be this many times as unlikely to the reference as the run's first ones varied among each other.
_FAR = 2.0
_EXPLAINS = 0.5
_MUCH = 0.25
_TIMES = 3.0
_ENOUGH = 20


def reward_hacking(course: Course) -> Finding | None:
    """Reward rises while reference logprob, diversity within the text or length falls apart."""
    reward = course.shift("reward")
    if reward is None or not reward.rises:
        return None
    signs = _signs(course)
    if not signs:
        return None
    what = f"reward rose from {reward.early:.3g} to {reward.late:.3g} while {went(signs)}"
    return by_trend(course, REWARD_HACKING, what, signs, beside={"reward": reward})


def _signs(course: Course) -> dict[str, Shift]:
    likely = course.shift_of_facts(lambda facts: facts.ref_logprobs.mean if facts.ref_logprobs else None)
    usual = [facts.ref_logprobs.deviation for facts in course.early if facts.ref_logprobs]
    cut = course.shift("completions/clipped_ratio")
    signs: dict[str, Shift] = {}
    if likely and likely.falls and likely.early - likely.late > _FAR * statistics.median(usual):
        signs["reference logprob per token"] = likely
    signs |= repetition(course)
    if cut and cut.rises and cut.late >= max(2 * cut.early, 0.5) and not course.settings.has_fixed_length:
        signs["share cut at the limit"] = cut
    return signs


def independent_reward(course: Course) -> Finding | None:
    """A reward of weight 0 falls while the reward rises."""
    reward = course.shift("reward")
    if reward is None or not reward.rises:
        return None
    for name, weight in course.settings.weights.items():
        watched = course.shift(f"rewards/{name}/mean") if weight == 0 else None
        if watched is not None and watched.falls:
            what = (
                f"reward rose from {reward.early:.3g} to {reward.late:.3g} while {name}, which has no "
                f"weight, fell from {watched.early:.3g} to {watched.late:.3g}"
            )
            return by_trend(course, INDEPENDENT_REWARD, what, {name: watched}, beside={"reward": reward})
    return None


def part_at_ceiling(course: Course) -> Finding | None:
    """One part is earned by all and no longer varies, another varies and does not rise from then on."""
    names = [name for name, weight in course.settings.weights.items() if weight]
    for earned in names:
        ceiling, spread = course.shift(f"rewards/{earned}/mean"), course.shift(f"rewards/{earned}/std")
        if not ceiling or not spread or not ceiling.rises or spread.late > spread.early / 2:
            continue
        for other in names:
            series = course.series(f"rewards/{other}/mean")
            after, whole = shift_of(series.since(ceiling.since)), shift_of(series)
            varies = shift_of(course.series(f"rewards/{other}/std").since(ceiling.since))
            is_flat = after and whole and not after.rises and not whole.rises
            if other != earned and is_flat and after and varies and varies.late > 0:
                what = (
                    f"{earned} rose to {ceiling.late:.3g} for nearly all, while {other} stays at "
                    f"{after.late:.3g} though completions differ in it"
                )
                return by_trend(course, PART_AT_CEILING, what, {earned: ceiling}, beside={other: after})
    return None


def few_tokens(course: Course) -> Finding | None:
    """One token has become much of the text, and its count explains the reward within groups."""
    if not course.facts:
        return None
    last = course.facts[-1]
    for token in last.tokens:
        share = course.shift_of_facts(lambda facts, token=token: _share(facts, token))
        pool = Pool()
        for facts in course.facts:
            if token in facts.tokens:
                pool = pool.plus(facts.tokens[token].with_score)
        correlation = pool.correlation
        if share is None or correlation is None or pool.degrees < _ENOUGH:
            continue
        grew = share.rises and share.late >= max(_TIMES * share.early, _MUCH)
        if grew and correlation > 0 and correlation**2 >= _EXPLAINS:
            what = (
                f"token {token} went from {share.early:.0%} to {share.late:.0%} of all tokens, and how often "
                f"it is there explains {correlation**2:.0%} of the differences in reward within groups"
            )
            seen = last_step(course, numbers={"correlation with reward": correlation})
            return by_trend(course, FEW_TOKENS, what, {f"share of token {token}": share}, evidence=seen)
    return None


def _share(facts: StepFacts, token: int) -> float:
    return facts.tokens[token].share if token in facts.tokens else 0.0
