"""What each rule has to see of a run, so that one that can't look is named and not taken for silent."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from muster.doctor.course import Course
from muster.doctor.facts import StepFacts


class Need(NamedTuple):
    """Something that a run's folder holds or lacks."""

    what: str
    is_there: Callable[[Course], bool]


class Unasked(NamedTuple):
    """A rule that could not look."""

    name: str
    """Of its finding."""
    lacks: tuple[str, ...]
    """What it would have to see."""


def lacking(course: Course) -> list[Unasked]:
    """The rules that can't look at this run, each with what it lacks."""
    found = [
        Unasked(name, tuple(need.what for need in needs if not need.is_there(course)))
        for name, needs in NEEDS.items()
    ]
    return [one for one in found if one.lacks]


def in_words(unasked: Sequence[Unasked]) -> list[str]:
    """The rules that could not look, those that lack the same in one sentence."""
    by_lack: dict[tuple[str, ...], list[str]] = {}
    for name, lacks in unasked:
        by_lack.setdefault(lacks, []).append(name)
    return [
        f"{', '.join(names)} lack{'s' if len(names) == 1 else ''} {' and '.join(lacks)}"
        for lacks, names in by_lack.items()
    ]


def _metric(*names: str) -> Need:
    """One of these metrics, in some step; that it has no number there is something to look at, too."""
    return Need(
        " or ".join(names), lambda course: any(name in line for line in course.lines for name in names)
    )


def _of_rollouts(what: str, is_seen: Callable[[StepFacts], bool]) -> Need:
    """Something that the rollouts of some step show."""
    return Need(what, lambda course: any(map(is_seen, course.facts)))


def _has_signs_of_hacking(course: Course) -> bool:
    return any(facts.ref_logprobs or facts.distinct_pairs is not None for facts in course.facts) or any(
        line.get("completions/clipped_ratio") is not None for line in course.lines
    )


_REWARD, _NORM = _metric("reward"), _metric("grad_norm")
_CUT, _EQUAL = _metric("completions/clipped_ratio"), _metric("frac_reward_zero_std")
_MEAN_LENGTH, _MISMATCH = _metric("completions/mean_length"), "sampling/sampling_logp_difference"
_SPREAD, _KL = _metric("reward_std"), _metric("kl_k3")
_GROUPS = _of_rollouts("scored completions by group", lambda facts: bool(facts.groups))
_LENGTHS = _of_rollouts("the tokens of each completion", lambda facts: facts.lengths is not None)
_TOKENS = _of_rollouts("the tokens of each completion", lambda facts: bool(facts.tokens))
_REFERENCE = _of_rollouts("the reference's logprobs", lambda facts: facts.kl is not None)
_WEIGHTS = Need("the rewards' weights", lambda course: bool(course.settings.weights))
_ROWS = Need("which row of the data each prompt is", lambda course: course.has_rows)
_HELD_OUT = Need("the completions of two evaluations", lambda course: len(course.held_out) > 1)
_SECONDS = Need(
    "seconds and tokens of each step", lambda course: any(line.get("tokens") for line in course.timings)
)

NEEDS: Mapping[str, tuple[Need, ...]] = {
    "mode-collapse": (_GROUPS,),
    "reward-hacking": (_REWARD, Need("tokens, reference logprobs or the share cut", _has_signs_of_hacking)),
    "independent-reward": (_REWARD, _WEIGHTS),
    "sampler-mismatch": (_metric(f"{_MISMATCH}/mean"), _metric(f"{_MISMATCH}/max")),
    "dead-gradients": (_SPREAD, _NORM),
    "exploding-gradients": (_metric("grad_norm", "updates/skipped"),),
    "reward-errors": (_metric("rollouts/failed"), _GROUPS),
    "no-signal": (_GROUPS,),
    "evaluation-gap": (_REWARD, _HELD_OUT),
    "part-at-ceiling": (_WEIGHTS,),
    "few-tokens": (_TOKENS,),
    "truncation": (_CUT,),
    "length-reward": (_MEAN_LENGTH, _LENGTHS),
    "length-drift": (_REWARD, _MEAN_LENGTH, _LENGTHS),
    "kl-runaway": (_REWARD, _KL),
    "strangled-kl": (_REWARD, _SPREAD, _KL, _REFERENCE),
    "clip-saturation": (_metric("clip_ratio/region_mean"),),
    "tiny-spread": (_GROUPS,),
    "repeated-data": (_GROUPS, _ROWS),
    "throughput-rot": (_SECONDS,),
    "plateau": (_REWARD, _EQUAL),
}
"""By the name of the finding."""
