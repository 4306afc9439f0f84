"""Rewards to regrade by; free of torch, since every worker that grades imports them."""


def first_low(completion: str, completion_ids: list[int]) -> float:
    """Whether the first token is in the lower half of the vocabulary."""
    return float(completion_ids[0] < 130)


def short(completion: str, completion_ids: list[int]) -> float:
    """The fewer tokens the better."""
    return -len(completion_ids) / 4


def moody(completion_ids: list[int], completion: str) -> float | None:
    """Fails where the second token is low, abstains where the first is; else it is content."""
    if completion_ids[-1] % 3 == 0:
        raise ValueError("no mood \x1b[2J for this")
    return None if completion_ids[0] % 3 == 0 else 1.0


def plain_length(completions: list[object]) -> list[float]:
    """Characters of each completion as TRL shows it: without special tokens."""
    return [float(len(str(text))) for text in completions]


def needs_answer(completion: str, answer: str) -> float:
    """Asks for a column that the rollouts do not have."""
    return float(completion == answer)
