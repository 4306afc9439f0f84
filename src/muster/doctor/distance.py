"""How far the policy is from the reference, from the policy that sampled, and from what the sampler says."""

import statistics

from muster.doctor.baseline import shift_of
from muster.doctor.course import Course, Settings
from muster.doctor.facts import StepFacts
from muster.doctor.finding import Evidence, Finding, Kind
from muster.doctor.telling import by_trend, numbers_of

KL_RUNAWAY = Kind(
    name="kl-runaway",
    level="warning",
    means="The policy moves away from the reference faster and faster, and the reward no longer rises for "
    "it: what "
    "it gives up of the model buys nothing.",
    change="Raise algo.kl_coef, or lower optim.lr; and take the checkpoint from before it began, which has "
    "the reward "
    "at less distance.",
)
STRANGLED_KL = Kind(
    name="strangled-kl",
    level="warning",
    means="The pull back to the reference is as strong as the push of the advantages: the policy stands "
    "still between them, "
    "though groups differ and there is something to learn.",
    change="Lower algo.kl_coef tenfold; 0.01 to 0.1 is usual.",
)
CLIP_SATURATION = Kind(
    name="clip-saturation",
    level="warning",
    means="Many tokens are outside the clip range and have no gradient: later updates of a step learn from "
    "what is left, "
    "and the policy moves about as far in a step as the clip allows.",
    change="Fewer updates for the same rollouts (algo.passes, algo.minibatches), or a lower optim.lr.",
)
SAMPLER_MISMATCH = Kind(
    name="sampler-mismatch",
    level="serious",
    means="The sampler's logprobs have drifted from the trainer's: what is sampled is no longer the policy "
    "that is "
    "being updated. Its weights are old, or it computes otherwise.",
    change="See that new weights reach the sampler (sampling.sync_every), and that both use one precision "
    "(model.dtype). "
    "engine.max_mismatch stops a run at this; algo.correction only weighs it down.",
)
_TIMES = 10.0
_VISIBLE = 0.01
_HALF_AS_STRONG = 0.5
_DOUBLED = 2.0
_MANY = 0.1
_THIRD = 1.0 / 3.0
_FLAT = 0.05
_MEASURES = {
    "loss": "mean size of the KL term's gradient over that of the advantages",
    "reward": "how much the KL charge differs within groups over how much the scores do",
}


def kl_runaway(course: Course) -> Finding | None:
    """In the last half KL rises to more than twice what it was, and reward does not."""
    series = course.series("kl_k3")
    recent, reward = shift_of(series.last(0.5)), shift_of(course.series("reward").last(0.5))
    whole = shift_of(series)
    if recent is None or reward is None or whole is None:
        return None
    is_faster = recent.late - recent.early > whole.noise and recent.late >= _DOUBLED * recent.early
    if not recent.rises or not is_faster or reward.p_rising < _FLAT:
        return None
    what = (
        f"KL from the reference went from {recent.early:.3g} to {recent.late:.3g} nats a token in the last "
        f"{recent.num_steps} steps, reward from {reward.early:.3g} to {reward.late:.3g}"
    )
    return by_trend(course, KL_RUNAWAY, what, {"KL": recent}, beside={"reward": reward})


def strangled_kl(course: Course) -> Finding | None:
    """Reward never rose though groups differ; KL rests, and pulls half as hard as advantages push."""
    coefficient = course.settings.kl_coef
    reward, kl = course.shift("reward"), shift_of(course.series("kl_k3").last(0.5))
    pulls = [pull for facts in course.late if (pull := pull_over_push(facts, course.settings)) is not None]
    signal = course.shift("reward_std")
    if not coefficient or reward is None or kl is None or not pulls or signal is None or signal.late <= 0:
        return None
    pull = statistics.median(pulls)
    if pull < _HALF_AS_STRONG or reward.p_rising < _FLAT or kl.rises:
        return None
    return Finding(
        kind=STRANGLED_KL,
        what=f"the KL term pulls {pull:.2g} times as hard as the advantages push; reward went from "
        f"{reward.early:.3g} to "
        f"{reward.late:.3g}, and KL rests at {kl.late:.2g} nats a token",
        since=course.lines[0]["step"],
        sure="likely" if pull > 1 else "possible",
        how=f"{_MEASURES[course.settings.kl_in]}, in the last {len(pulls)} steps; reward "
        f"without a trend, p = {reward.p_rising:.1g}",
        evidence=Evidence(
            numbers={"pull over push": pull, "algo.kl_coef": coefficient}
            | numbers_of({"reward": reward, "KL": kl}),
            steps=tuple(facts.step for facts in course.late),
        ),
    )


def pull_over_push(facts: StepFacts, settings: Settings) -> float | None:
    """Size of the KL term's gradient in a logprob over that of the surrogate: kl_coef mean|k'| / mean|A|.

    In the reward, how much the charge differs within groups over how much the scores do. None where nothing
    pulls: k1 in the loss has a gradient of 1 wherever the token went.
    """
    kl = facts.kl
    if kl is None:
        return None
    if settings.kl_in == "reward":
        size, push = kl.charges.get(settings.kl), kl.scores
    else:
        sizes = kl.moving if settings.has_moving_ratio else kl.gradients
        size, push = sizes.get(settings.kl), facts.advantage_size
    return None if size is None or not push else settings.kl_coef * size / push


def clip_saturation(course: Course) -> Finding | None:
    """The share of clipped tokens has grown beyond a tenth, or was a third throughout."""
    clipped = course.shift("clip_ratio/region_mean")
    if clipped is None:
        return None
    has_grown = clipped.rises and clipped.late >= max(_DOUBLED * clipped.early, _MANY)
    if not has_grown and min(clipped.early, clipped.late) < _THIRD:
        return None
    return Finding(
        kind=CLIP_SATURATION,
        what=f"{clipped.late:.0%} of the tokens with an advantage are clipped, {clipped.early:.0%} at first",
        since=clipped.since if has_grown else course.lines[0]["step"],
        sure=clipped.sure if has_grown else "certain",
        how=clipped.how if has_grown else "counted in first and last steps",
        evidence=Evidence(
            numbers=numbers_of({"share clipped": clipped}),
            steps=course.last_steps,
        ),
    )


def sampler_mismatch(course: Course) -> Finding | None:
    """The mean difference is ten times what it was, and some probability is off by a percent or more."""
    if course.series("sampling/staleness/max").values:
        # Of completions that were sampled ahead most of it is their age; the run itself holds what they are
        # to the weights that sampled them.
        return None
    name = "sampling/sampling_logp_difference"
    mean, largest = course.shift(f"{name}/mean"), course.shift(f"{name}/max")
    if mean is None or largest is None or not mean.rises:
        return None
    # The first step's is that of the sampler before there were new weights to give it.
    usual = min(mean.early, course.series(f"{name}/mean").values[0])
    if mean.late < _TIMES * usual or largest.late < _VISIBLE:
        return None
    what = (
        f"sampler and trainer differ by {mean.late:.2g} nats a token, {usual:.2g} at first; at most by "
        f"{largest.late:.2g}"
    )
    beside = {"largest difference": largest}
    seen = Evidence(numbers={}, steps=course.last_steps)
    return by_trend(course, SAMPLER_MISMATCH, what, {"mean difference": mean}, beside=beside, evidence=seen)
