"""Gradients that are not there, and those that are far too large."""

import statistics

from muster.doctor.baseline import MIN_POINTS, window
from muster.doctor.course import Course
from muster.doctor.finding import Evidence, Finding, GroupRef, Kind

DEAD_GRADIENTS = Kind(
    name="dead-gradients",
    level="serious",
    means="Rewards differ within groups, and yet the weights don't move: what should teach does not reach "
    "the loss.",
    change='Look at what takes part: algo.truncated = "mask" leaves cut completions out (raise '
    "sampling.max_tokens), a gate "
    "or a clip may leave no token, and optim.lr may have come to its end.",
)
EXPLODING_GRADIENTS = Kind(
    name="exploding-gradients",
    level="serious",
    means="The gradient is many times what it was before the first updates, or not finite: updates are too "
    "large, and "
    "each one undoes the last.",
    change="Lower optim.lr tenfold and add optim.warmup; resume from a checkpoint before it began. "
    "optim.max_grad_norm "
    "bounds one update, it does not make a large learning rate small.",
)
_DEAD = 1e-3
_TIMES = 5.0
_LEAST_STEPS = 3


def dead_gradients(course: Course) -> Finding | None:
    """In all of the last steps with differing rewards there was no update, or next to no gradient."""
    judged = [line for line in course.lines if (line.get("reward_std") or 0) > 0]
    if len(judged) < MIN_POINTS:
        return None
    norms = [line.get("grad_norm") for line in judged]
    alive = [norm for norm in norms if norm]
    least = _DEAD * statistics.median(alive[: window(len(alive))]) if len(alive) > 1 else 0.0
    dead = [norm is None or norm <= least for norm in norms]
    skipped = any(line.get("updates/skipped") for line in judged[-window(len(judged)) :])
    count = next((number for number, is_dead in enumerate(reversed(dead)) if not is_dead), len(dead))
    if skipped or count < max(window(len(judged)), _LEAST_STEPS):
        return None
    late = judged[-count:]
    idle = sum(facts.num_without_advantage for facts in course.late)
    left_out = f"; {idle} of their rollouts are left out of the loss" if idle else ""
    return Finding(
        kind=DEAD_GRADIENTS,
        what=f"in the last {count} steps whose rewards differ, no update moved the weights{left_out}",
        since=late[0]["step"],
        sure="certain",
        how=f"counted: {count} steps in a row",
        evidence=Evidence(
            numbers={"steps": count, "rollouts left out": idle},
            steps=tuple(line["step"] for line in late[-3:]),
            groups=_that_differ(course),
        ),
    )


def _that_differ(course: Course) -> tuple[GroupRef, ...]:
    """Some groups of the last step whose scores differ."""
    groups = course.facts[-1].groups if course.facts else ()
    return tuple(group.ref for group in groups if group.scores and group.scores.deviation > 0)[:3]


def exploding_gradients(course: Course) -> Finding | None:
    """Some steps with five times the gradient norm of the first, or updates skipped for one not finite."""
    norms = course.series("grad_norm")
    skipped = [line["step"] for line in course.lines if line.get("updates/skipped")]
    if len(norms.values) < _LEAST_STEPS and not skipped:
        return None
    # The first norm is that of the model before any update: a learning rate can't have touched it.
    first = norms.values[: window(len(norms.values))]
    usual = min(statistics.median(first), first[0]) if first else 0.0
    large = [(step, norm) for step, norm in zip(*norms) if usual and norm > _TIMES * usual]
    if len(large) < _LEAST_STEPS and not skipped:
        return None
    steps = sorted({*skipped, *(step for step, _ in large)})
    worst = max((norm for _, norm in large), default=0.0)
    told = [
        f"the gradient's norm was above {_TIMES * usual:.3g}, five times the first, in {len(large)} steps, "
        f"up to {worst:.3g}"
        if large
        else "",
        f"updates of {len(skipped)} steps were skipped, since their gradient was not finite"
        if skipped
        else "",
    ]
    return Finding(
        kind=EXPLODING_GRADIENTS,
        what="; ".join(text for text in told if text),
        since=steps[0],
        sure="certain" if skipped or len(large) >= 2 * _LEAST_STEPS else "likely",
        how="counted against the norm before the first update",
        evidence=Evidence(
            numbers={
                "norm at first": usual,
                "largest norm": worst,
                "steps with skipped updates": len(skipped),
            },
            steps=tuple(steps[:5]),
        ),
    )
