"""Whether the run gets anywhere: reward, held-out reward, and time."""

from muster.clock import BESIDE_STEP
from muster.doctor.baseline import Shift, series_of, shift_of
from muster.doctor.course import Course
from muster.doctor.finding import Evidence, Finding, Kind
from muster.doctor.telling import by_trend, numbers_of
from muster.stats import paired_difference
from muster.store import Line

PLATEAU = Kind(
    name="plateau",
    level="note",
    means="The reward has stopped rising though groups still differ, so there is something to learn and it "
    "is not learned.",
    change="Where it never rose, raise optim.lr (threefold), or sample more for each update "
    "(sampling.group_size, "
    "sampling.prompts_per_step). Where it rose before, look at the held-out reward: the run may simply be "
    "done.",
)
EVALUATION_GAP = Kind(
    name="evaluation-gap",
    level="warning",
    means="The reward rises on the prompts that are trained on and not on those that aren't: the policy "
    "learns the prompts "
    "by heart, or what it was paid for does not carry over.",
    change="More prompts (data.path), or fewer passes over those there are (run.steps); the checkpoint with "
    "the best "
    "held-out reward is the one to keep. eval.every shows where that is.",
)
THROUGHPUT_ROT = Kind(
    name="throughput-rot",
    level="warning",
    means="A step takes longer and longer for the same number of tokens: something grows with every step, in "
    "the reward, "
    "the sampler or the machine.",
    change="Look at the phase that grew. `score`: a reward that keeps what it has seen, or a slowing server. "
    "`sample`, "
    "`forward`, `backward`: memory that runs out, or other work on the machine. `muster train --profile` "
    "shows two steps.",
)
_LEAST_STEPS = 30
_FLAT = 0.05
_LEAST_PROMPTS = 8
_SLOWER = 2.0
_P = 1e-4
"""Machines are noisy: other work comes and goes for a while."""


def plateau(course: Course) -> Finding | None:
    """No trend upwards in the last half of thirty steps or more, with signal in most groups."""
    series = course.series("reward")
    if len(series.steps) < _LEAST_STEPS:
        return None
    whole, recent = shift_of(series), shift_of(series.last(0.5))
    equal = course.shift("frac_reward_zero_std")
    if whole is None or recent is None or equal is None or equal.late > 0.5 or recent.p_rising < _FLAT:
        return None
    if recent.falls:
        told = "fell in the last half"
    elif whole.rises:
        told = "stopped rising"
    else:
        told = "never rose"
    return Finding(
        kind=PLATEAU,
        what=f"reward {told}: {whole.early:.3g} in the first steps, {recent.early:.3g} in the middle, "
        f"{recent.late:.3g} now, "
        f"while {1 - equal.late:.0%} of the groups differ",
        since=series.steps[0] if not whole.rises else series.last(0.5).steps[0],
        sure="likely" if recent.p_rising > 0.3 else "possible",
        how=f"no Mann-Kendall trend upwards over the last {recent.num_steps} steps, p = "
        f"{recent.p_rising:.1g}",
        evidence=Evidence(
            numbers=numbers_of({"reward": whole}),
            steps=(course.lines[-1]["step"],),
            rollouts=course.facts[-1].best if course.facts else (),
        ),
    )


def evaluation_gap(course: Course) -> Finding | None:
    """Held-out reward gained, at the most, less than half of what training reward did."""
    reward = course.shift("reward")
    if reward is None or not reward.rises or len(course.held_out) < 2:
        return None
    first, last = course.held_out[0], course.held_out[-1]
    both = [name for name in first.scores if name in last.scores]
    if len(both) < _LEAST_PROMPTS or last.step <= reward.since:
        return None
    gain = paired_difference([first.scores[name] for name in both], [last.scores[name] for name in both])
    rose = reward.late - reward.early
    if gain.high is None or gain.high >= rose / 2:
        return None
    return Finding(
        kind=EVALUATION_GAP,
        what=f"reward rose by {rose:.3g} in training, and by {gain.mean:.3g} on {len(both)} held-out prompts "
        "between "
        f"steps {first.step} and {last.step}",
        since=reward.since,
        sure="likely" if gain.high < rose / 4 else "possible",
        how=f"paired bootstrap over prompts: held-out gain at most {gain.high:.3g} (95 %); in training, "
        f"{reward.how}",
        evidence=Evidence(
            numbers=numbers_of({"reward": reward}) | {"held-out gain": gain.mean, "prompts": len(both)},
            steps=(first.step, last.step),
        ),
    )


def throughput_rot(course: Course) -> Finding | None:
    """Both the seconds of a step and its seconds a token have doubled: it is not the texts' length."""
    lines = [line for line in course.timings if line.get("tokens")]
    steps = [line["step"] for line in lines]
    seconds = [sum(_phases(line).values()) for line in lines]
    whole = shift_of(series_of(steps, seconds))
    each = shift_of(series_of(steps, [took / line["tokens"] for took, line in zip(seconds, lines)]))
    if whole is None or each is None or not _is_slower(whole) or not _is_slower(each):
        return None
    names = {name for line in lines for name in _phases(line)}
    growth = {
        name: shift.late - shift.early
        for name in names
        if (shift := shift_of(series_of(steps, [_phases(line).get(name, 0.0) for line in lines])))
    }
    phase = max(growth, key=lambda name: growth[name])
    what = (
        f"a step takes {whole.late:.2g} s, {whole.early:.2g} s at first, and {each.late / each.early:.2g} "
        f"times as long a token; most of it in `{phase}`"
    )
    numbers: dict[str, float | str] = {"phase": phase, "seconds more in it": growth[phase]}
    seen = Evidence(numbers=numbers, steps=tuple(steps[-3:]))
    return by_trend(course, THROUGHPUT_ROT, what, {"seconds": whole}, evidence=seen)


def _is_slower(shift: Shift) -> bool:
    return shift.early > 0 and shift.rises and shift.p < _P and shift.late >= _SLOWER * shift.early


def _phases(line: Line) -> dict[str, float]:
    seconds = line.get("seconds")
    return (
        {name: took for name, took in seconds.items() if name not in BESIDE_STEP}
        if isinstance(seconds, dict)
        else {}
    )
