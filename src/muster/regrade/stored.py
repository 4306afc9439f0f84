"""A step's rollouts as they lie in the run's folder, and as rewards are asked about them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from muster.errors import ConfigError, DataError
from muster.records import GradingRequest, Group, Rollout, Score, Trace
from muster.rewards import Reward
from muster.store import TOKENIZER, read_rollouts

_PLACES = ("", "final")
"""Where in a run's folder its tokenizer may lie: older runs have that of the exported model only."""


class StoredStep(NamedTuple):
    """The rollouts of a step."""

    number: int
    groups: tuple[Group, ...]
    """As stored; those that dynamic sampling replaced come last."""
    traces: tuple[tuple[Trace, ...], ...]
    is_replaced: tuple[bool, ...]
    """By group: it was sampled and graded, and never trained on."""

    @property
    def places(self) -> list[int]:
        """Which groups the step trained on."""
        return [place for place, replaced in enumerate(self.is_replaced) if not replaced]


def read_step(folder: Path, step: int) -> StoredStep:
    """The step's rollouts; CheckpointError where they are damaged, ConfigError where they are not there."""
    stored = read_rollouts(folder, step)
    traces = stored.traces or tuple(tuple(_UNTRAINED for _ in group.rollouts) for group in stored.groups)
    last: dict[int, int] = {}
    for group in stored.groups:
        key = group.prompt.key
        last[key.slot] = max(key.attempt, last.get(key.slot, 0))
    replaced = tuple(group.prompt.key.attempt < last[group.prompt.key.slot] for group in stored.groups)
    return StoredStep(step, stored.groups, traces, replaced)


_UNTRAINED = Trace(reward=None, advantage=0.0, mask=())


def find_tokenizer(folder: Path, rewards: Sequence[Reward]) -> Tokenizer | None:
    """The run's tokenizer, where a reward asks for completions without special tokens; else None.

    Only texts with those tokens are stored; refuses a folder that has no tokenizer to take them out by.
    """
    asking = [reward.name for reward in rewards if _asks_for_plain(reward)]
    if not asking:
        return None
    for place in _PLACES:
        if (path := folder / place / TOKENIZER).is_file():
            try:
                return Tokenizer.from_file(str(path))
            except Exception as error:  # that is what tokenizers raises for a broken file
                raise ConfigError(f"{path} can't be read as a tokenizer: {error}. Restore it.") from error
    raise ConfigError(
        f"reward {asking[0]} is called with completions without special tokens, which are not stored, and "
        f"{folder} holds no {TOKENIZER} to make them by. Regrade by a reward that takes `completion`."
    )


def _asks_for_plain(reward: Reward) -> bool:
    return reward.convention in ("batch", "verl") or "plain_text" in reward.signature.supplied


def requests_of(step: StoredStep, tokenizer: Tokenizer | None) -> list[GradingRequest]:
    """What the run asked its rewards about the step's rollouts, group by group."""
    return [
        GradingRequest(
            sample=group.sample,
            prompt_text=group.prompt_text,
            completion=rollout.completion,
            text=rollout.text,
            plain_text=rollout.text if tokenizer is None else plain_text(tokenizer, rollout),
            episode=rollout.episode,
        )
        for group in step.groups
        for rollout in group.rollouts
    ]


def plain_text(tokenizer: Tokenizer, rollout: Rollout) -> str:
    """The completion without any special token; DataError where the tokenizer gives another text.

    Which ids end a completion is not stored: those after which the ids read as the stored text are cut.
    """
    ids = rollout.completion.ids
    turns = [list(ids[turn.start : turn.stop]) for turn in rollout.completion.turns]
    texts = _said(rollout)
    return "\n".join(_plain(tokenizer, turn, text) for turn, text in zip(turns, texts, strict=True))


def _said(rollout: Rollout) -> list[str]:
    """The text of each of the policy's turns."""
    if rollout.episode is None:
        return [rollout.text]
    return [str(one["content"]) for one in rollout.episode.messages if one["role"] == "assistant"]


def _plain(tokenizer: Tokenizer, ids: list[int], text: str) -> str:
    for length in range(len(ids), -1, -1):
        if tokenizer.decode(ids[:length], skip_special_tokens=False) == text:
            return tokenizer.decode(ids[:length], skip_special_tokens=True)
    raise DataError(
        f"the run's {TOKENIZER} does not give the stored text {text[:60]!r} of its ids, so what a "
        "reward would see without special tokens can't be told. Regrade by a reward that takes `completion`."
    )


def with_scores(groups: Sequence[Group], scores: Sequence[Score]) -> tuple[Group, ...]:
    """The groups with these scores, one per rollout, in order."""
    rest = iter(scores)
    return tuple(
        replace(group, rollouts=tuple(replace(rollout, score=next(rest)) for rollout in group.rollouts))
        for group in groups
    )
