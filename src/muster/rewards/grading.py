"""Scores from rewards: the seam behind which they run, and the one that runs them in this process."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Protocol

from muster.errors import RewardError
from muster.records import GradingRequest, Score
from muster.redaction import redacted
from muster.rewards.calling import Failure, Logged, Surroundings, TrainerState, Verdict, verdicts
from muster.rewards.reward import Reward

_SHOWN_REASONS = 3


class Grader(Protocol):
    """Grades completions; holds whatever its rewards run in."""

    def grade(
        self, requests: Sequence[GradingRequest], *, step: int = 0, num_steps: int | None = None
    ) -> list[Score]:
        """One score per request, in order; a reward that fails is a failure in the score, not a crash."""
        ...

    def take_logged(self) -> Logged:
        """What rewards noted through `log_metric` and `log_extra` since the last call."""
        ...

    def close(self) -> None:
        """Frees what the rewards run in."""
        ...


class InlineGrader:
    """Runs rewards in this process, one after the other; one that hangs stops the run."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        """Keeps the rewards, in their order."""
        self.rewards = tuple(rewards)
        self._logged = Logged()

    def grade(
        self, requests: Sequence[GradingRequest], *, step: int = 0, num_steps: int | None = None
    ) -> list[Score]:
        """One score per request, in order."""
        state = TrainerState(global_step=step, max_steps=num_steps or 0)
        around = Surroundings(state=state, logged=self._logged)
        by_reward = {reward.name: verdicts(reward, requests, around) for reward in self.rewards}
        return combined(self.rewards, by_reward, len(requests))

    def take_logged(self) -> Logged:
        """What rewards noted on the side since the last call."""
        logged, self._logged = self._logged, Logged()
        return logged

    def close(self) -> None:
        """Does nothing: there is nothing to free."""


def grade(
    requests: Sequence[GradingRequest],
    rewards: Sequence[Reward],
    *,
    step: int = 0,
    num_steps: int | None = None,
) -> list[Score]:
    """One score per request, from rewards run in this process."""
    return InlineGrader(rewards).grade(requests, step=step, num_steps=num_steps)


def combined(
    rewards: Sequence[Reward], verdicts_by_reward: Mapping[str, Sequence[Verdict]], count: int
) -> list[Score]:
    """One score per completion from what each reward said of it."""
    return [
        _score(rewards, {reward.name: verdicts_by_reward[reward.name][index] for reward in rewards})
        for index in range(count)
    ]


def refuse_failures(scores: Sequence[Score], max_failed_share: float) -> None:
    """Raises when more than this share of the scores are failures, with the reasons that came most often."""
    failed = [score for score in scores if score.is_failure]
    if not scores or len(failed) <= max_failed_share * len(scores):
        return
    reasons = Counter(f"{name} {reason}" for score in failed for name, reason in score.failures.items())
    shown = "\n".join(f"  {count} times: {reason}" for reason, count in reasons.most_common(_SHOWN_REASONS))
    raise RewardError(
        f"{len(failed)} of {len(scores)} completions could not be scored; reward.max_failed_share allows "
        f"{max_failed_share:g}. Mend the reward, or have it give None where it can't judge:\n{shown}"
    )


def _score(rewards: Sequence[Reward], given: Mapping[str, Verdict]) -> Score:
    """The weighted sum of the rewards that gave a number, and what each of them said."""
    # Errors of clients repeat what was sent: addresses, headers, keys.
    failures = {
        name: redacted(verdict.reason) for name, verdict in given.items() if isinstance(verdict, Failure)
    }
    parts = {name: None if isinstance(verdict, Failure) else verdict for name, verdict in given.items()}
    terms = [
        reward.weight * part
        for reward in rewards
        if reward.weight and (part := parts[reward.name]) is not None
    ]
    value = fsum(terms) if terms and not failures else None
    return Score(value=value, parts=parts, failures=failures)
