"""The rewards of the measurements, each in the form that either trainer calls; free of torch."""

import zlib
from collections.abc import Callable, Sequence

from muster.rewards import json_extraction

Messages = Sequence[dict[str, str]]
Batch = Callable[..., list[float | None]]


def spread(completion: str) -> float:
    """A number in [0, 1) that follows from the text: no two completions of a group get the same.

    So every group has a signal and every step pays for an update, on both sides.
    """
    return zlib.crc32(completion.encode("utf-8")) / 2**32


def extraction(completion: str, prompt: str) -> float | None:
    """What the demo pays: see `muster.rewards.json_extraction`."""
    return json_extraction(completion, prompt, {})


def as_batch(name: str) -> Batch:
    """A reward by name in TRL's convention, for prompts and completions that are chats."""

    def judge(
        prompts: Sequence[Messages], completions: Sequence[Messages], **_: object
    ) -> list[float | None]:
        pairs = zip(prompts, completions, strict=True)
        return [of_text(name, answer[-1]["content"], prompt[-1]["content"]) for prompt, answer in pairs]

    judge.__name__ = name
    return judge


def of_text(name: str, completion: str, prompt: str) -> float | None:
    """The reward of that name for one completion."""
    return spread(completion) if name == "spread" else extraction(completion, prompt)
