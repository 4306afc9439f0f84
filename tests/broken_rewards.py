"""Rewards with a fault each, for the runs that the doctor is tried on; torch-free for the workers."""

from zlib import crc32

LOW = 130
_remembered: list[set[int]] = []
_calls = [0]


def dense(completion: str, completion_ids: list[int]) -> float:
    """A hole: pays for a handful of bytes, so one of them over and over is the best there is."""
    return sum(20 <= number < 40 for number in completion_ids) / len(completion_ids)


def one_byte(completion: str, completion_ids: list[int]) -> float:
    """Pays for one token alone."""
    return sum(number == 100 for number in completion_ids) / len(completion_ids)


def variety(completion: str, completion_ids: list[int]) -> float:
    """What a reader would want: different tokens."""
    return len(set(completion_ids)) / len(completion_ids)


def starts_low(completion: str, completion_ids: list[int]) -> float:
    """Right or wrong by the first token: learned within some steps."""
    return float(completion_ids[0] < LOW)


def noise(completion: str, completion_ids: list[int]) -> float:
    """Says right and wrong without looking."""
    _calls[0] += 1
    return float(crc32(str(_calls[0]).encode()) % 2)


def never(completion: str, completion_ids: list[int]) -> float:
    """Out of reach."""
    return float(completion_ids[:4] == [7, 7, 7, 7])


def long(completion: str, completion_ids: list[int]) -> float:
    """Pays for length."""
    return min(len(completion_ids), 40) / 40


def with_tie_breaker(completion: str, completion_ids: list[int]) -> float:
    """Right or wrong, and a hundredth for something else."""
    return starts_low(completion, completion_ids) + 0.01 * variety(completion, completion_ids)


def fragile(completion: str, completion_ids: list[int]) -> float:
    """Can't read some texts."""
    if completion_ids[-1] > 240:
        raise ValueError("unbalanced bracket")
    return starts_low(completion, completion_ids)


def never_forgets(completion: str, completion_ids: list[int]) -> float:
    """Compares with every completion it has ever seen."""
    mine = set(completion_ids)
    nearest = max((len(mine & other) for _ in range(60) for other in _remembered), default=0)
    _remembered.append(mine)
    return starts_low(completion, completion_ids) + 0.0 * nearest


def by_heart(completion: str, completion_ids: list[int], prompt: str) -> float:
    """The right first token follows from the prompt by no rule that carries over."""
    return float((completion_ids[0] < LOW) == bool(crc32(prompt.encode()) % 2))
