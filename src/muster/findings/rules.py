"""What stands in the way of learning, each with what to change: rules over what some groups show."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from muster.findings.seen import MODEL_LIMIT, TURN_LIMIT, Seen, Setup

MUCH_TRUNCATED = 0.2
FEW_SIGNALS = 0.5
"""A larger share of groups without signal is a finding."""
ENOUGH_GROUPS = 8
"""Fewer groups say little about the share of groups without signal."""
FEW_DISTINCT = 0.5
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that stands in the way, and what to change."""

    name: str
    says: str
    """What was found, in words and numbers."""
    advice: str
    """What to change, the setting and its value included where one can be named."""
    setting: str | None = None
    """Path of the setting to change first."""
    value: float | int | str | None = None
    """What to set it to; None where that is the user's to choose."""
    blocks: bool = False
    """As it is, the run would not learn."""

    def __str__(self) -> str:
        """The finding with its advice."""
        return f"{self.says}. {self.advice}"


Rule = Callable[[Seen, Setup], Finding | None]


def find(seen: Seen, setup: Setup) -> list[Finding]:
    """What stands in the way, the most important first."""
    return in_order(finding for rule in RULES if (finding := rule(seen, setup)))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Those that keep a run from learning come first, otherwise in their order."""
    return sorted(findings, key=lambda finding: not finding.blocks)


def failing(seen: Seen, setup: Setup) -> Finding | None:
    """Rewards that raise, time out, or give what is no number."""
    if not seen.num_failed:
        return None
    reason, count = next(iter(seen.reasons.items()))
    share = seen.num_failed / seen.num_rollouts
    return Finding(
        name="failing reward",
        says=f"{seen.num_failed} of {seen.num_rollouts} rollouts could not be scored; "
        f"{count} times: {reason}",
        advice=f"Mend the reward: a step in which more than {setup.max_failed_share:g} of the rollouts fail "
        "stops the run (reward.max_failed_share)",
        setting="reward.use",
        blocks=share > setup.max_failed_share,
    )


def no_score(seen: Seen, setup: Setup) -> Finding | None:
    """Every reward declined to judge."""
    if seen.num_scored or seen.num_failed or not seen.num_rollouts:
        return None
    return Finding(
        name="no score",
        says=f"none of {seen.num_rollouts} rollouts has a score: every reward of weight gave None",
        advice="Have reward.use give a number, or set reward.weights so that one that does counts",
        setting="reward.use",
        blocks=True,
    )


def constant(seen: Seen, setup: Setup) -> Finding | None:
    """All rollouts of all prompts have the same score."""
    if seen.scores is None or seen.scores[0] != seen.scores[1] or seen.num_scored < 2:
        return None
    score, number = seen.scores[0], seen.num_scored
    bound = 1 - (1 - CONFIDENCE) ** (1 / number)
    rare = f"with {CONFIDENCE:.0%} confidence fewer than {_percent(bound)}"
    equal = f"all {number} rollouts of {seen.num_groups} prompts got the same reward, {score:g}"
    if score >= seen.full:
        return Finding(
            name="all right",
            says=f"{equal}, the full one: {rare} of the answers are wrong, and nothing is left to learn",
            advice="Train on harder prompts (data.path), or with a reward that tells good from better",
            setting="data.path",
            blocks=True,
        )
    what = "are better" if score <= seen.lowest else "differ"
    return Finding(
        name="all wrong" if score <= seen.lowest else "constant reward",
        says=f"{equal}: {rare} of the answers {what}, and equal rewards teach nothing",
        advice="Read the completions first: the reward may miss right answers. Then give steps on the way "
        "(a graded reward in reward.use), take easier prompts (data.path) or a model that was trained on "
        "good answers before (model.path)",
        setting="reward.use",
        blocks=True,
    )


def no_signal(seen: Seen, setup: Setup) -> Finding | None:
    """Rewards differ between prompts, but within no group."""
    if not seen.num_judged or seen.num_equal < seen.num_judged or _is_constant(seen):
        return None
    size = _better_size(seen, setup)
    return Finding(
        name="no signal",
        says=f"the rewards are equal within each of {seen.num_judged} groups, {_right_and_wrong(seen)}: "
        "no advantage anywhere",
        advice="Take prompts that are neither mastered nor out of reach (data.path)"
        + (f", and sampling.group_size = {size}: {_expects(seen, size)}" if size else ""),
        setting="sampling.group_size" if size else "data.path",
        value=size,
        blocks=True,
    )


def truncated(seen: Seen, setup: Setup) -> Finding | None:
    """Completions are cut before they end."""
    if setup.has_fixed_length or seen.lengths.truncated_share <= MUCH_TRUNCATED:
        return None
    none_counts = setup.leaves_out_truncated and seen.lengths.truncated_share == 1
    limit = _limit(seen, setup)
    return Finding(
        name="truncated",
        says=f"{_percent(seen.lengths.truncated_share)} of {seen.num_rollouts} completions were cut"
        f"{', most of them' if len(seen.lengths.cut_by) > 1 else ''} {limit.where}"
        + (', and with algo.truncated = "mask" none of them counts' if none_counts else ""),
        advice=limit.advice,
        setting=limit.setting,
        value=limit.value,
        blocks=none_counts,
    )


class _Limit(NamedTuple):
    """A limit that completions meet, and what to do about it."""

    where: str
    advice: str
    setting: str
    value: int | None = None


def _limit(seen: Seen, setup: Setup) -> _Limit:
    """The one that most of them meet."""
    met = max(seen.lengths.cut_by, key=lambda name: seen.lengths.cut_by[name])
    if met == MODEL_LIMIT:
        return _Limit(
            "where prompt, turns and what is between them reach model.max_tokens",
            "Raise model.max_tokens, or have the environment answer in fewer words",
            met,
        )
    if met == TURN_LIMIT:
        return _Limit(
            f"in a turn of {setup.max_turn_tokens} tokens, the environment's max_turn_tokens",
            "Raise it there, or have the prompts ask for shorter turns",
            "data.environment",
        )
    limit = 2 * setup.max_tokens
    return _Limit(
        f"at {setup.max_tokens} tokens",
        f"Try sampling.max_tokens = {limit} (what would keep 95 % whole can't be known from completions that "
        "were cut), or have the prompts ask for shorter answers",
        met,
        limit,
    )


def few_signals(seen: Seen, setup: Setup) -> Finding | None:
    """Most groups say nothing."""
    share = seen.num_equal / seen.num_judged if seen.num_judged else 0.0
    if seen.num_judged < ENOUGH_GROUPS or not FEW_SIGNALS < share < 1:
        return None
    size = _better_size(seen, setup)
    steps = [
        f"sampling.group_size = {size}: {_expects(seen, size)}" if size else "",
        "harder prompts (data.path)" if seen.num_right > seen.num_wrong else "easier prompts (data.path)",
        "algo.resample = 3 draws other prompts in their place",
    ]
    return Finding(
        name="few signals",
        says=f"{seen.num_equal} of {seen.num_judged} groups have equal rewards, {_right_and_wrong(seen)}: "
        "they teach nothing",
        advice="; or ".join(step for step in steps if step),
        setting="sampling.group_size" if size else "data.path",
        value=size,
    )


def alike(seen: Seen, setup: Setup) -> Finding | None:
    """A prompt's completions are the same over and over."""
    if seen.num_rollouts < 2 * seen.num_groups or seen.distinct_share > FEW_DISTINCT:
        return None
    return Finding(
        name="alike",
        says=f"only {_percent(seen.distinct_share)} of a prompt's completions differ from each other",
        advice="sampling.temperature = 1.0, and top_k, top_p and min_p off; a model this sure of itself has "
        "little to try",
        setting="sampling.temperature",
        value=1.0,
    )


def constant_part(seen: Seen, setup: Setup) -> Finding | None:
    """One of several rewards never varies."""
    counting = {name: part for name, part in seen.parts.items() if part.weight}
    names = [name for name, part in counting.items() if part.lowest == part.highest and part.num_scored > 1]
    if len(setup.weights) < 2 or not names or _is_constant(seen):
        return None
    listed = ", ".join(f"{name} ({seen.parts[name].lowest:g})" for name in names)
    return Finding(
        name="constant part",
        says=f"the same value for every rollout from: {listed}",
        advice="It changes no advantage: mend it, or leave it out of reward.use",
        setting="reward.use",
    )


RULES: tuple[Rule, ...] = (
    failing,
    no_score,
    constant,
    no_signal,
    truncated,
    few_signals,
    alike,
    constant_part,
)
"""The most important first."""


def _is_constant(seen: Seen) -> bool:
    return seen.scores is not None and seen.scores[0] == seen.scores[1]


def _right_and_wrong(seen: Seen) -> str:
    return f"{seen.num_right} all right, {seen.num_wrong} all wrong"


def _better_size(seen: Seen, setup: Setup) -> int | None:
    """The smallest larger group expected to halve the groups without signal, or the one that helps most."""
    now = seen.num_equal / max(seen.num_judged, 1)
    larger = {size: share for size, share in seen.expected.items() if size > setup.group_size}
    helping = [size for size, share in larger.items() if share <= now / 2]
    if helping:
        return min(helping)
    best = min(larger, key=lambda size: larger[size], default=None)
    return best if best is not None and larger[best] <= now - 0.1 else None


def _expects(seen: Seen, size: int) -> str:
    return f"{_percent(seen.expected[size])} of the groups are then expected without signal"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
