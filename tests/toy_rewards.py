"""Rewards of one line each; free of torch, since every worker that grades imports them."""

from collections.abc import Callable
from typing import Protocol

Note = Callable[[str, object], None]


def low_bytes(completion: str, completion_ids: list[int]) -> float:
    """The share of tokens in the lower half of the vocabulary: about half of them at first."""
    return sum(number < 130 for number in completion_ids) / len(completion_ids)


def noting_chars(completions: list[object], log_metric: Note, log_extra: Note) -> list[float]:
    """The length of each completion, with notes on the side, as TRL's rewards take them."""
    texts = [str(completion) for completion in completions]
    log_metric("mean_chars", sum(len(text) for text in texts) / len(texts))
    log_extra("parsed", texts)
    return [float(len(text)) for text in texts]


class State(Protocol):
    """The part of a trainer's state that is asked for."""

    global_step: int


def failing_late(completion: str, completion_ids: list[int], trainer_state: State) -> float:
    """Good for two steps, then no more."""
    if trainer_state.global_step > 2:
        raise ValueError("broken from now on")
    return low_bytes(completion, completion_ids)


def every_third(completion: str, completion_ids: list[int], sample_id: str) -> float:
    """Can be learned for every third prompt; the others are never solved."""
    return float(int(sample_id) % 3 == 0 and completion_ids[0] < 130)


def always_one(completion: str) -> float:
    """No completion is better than another."""
    return 1.0


def low_bytes_of_text(completion: str) -> float:
    """The share of letters in the first half of the alphabet: about half of them at first."""
    return sum(letter.lower() < "n" for letter in completion) / max(len(completion), 1)
