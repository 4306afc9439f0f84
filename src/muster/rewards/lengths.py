"""Rewards for how much is said: length, the soft limit, brevity and repetition."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

Unit = Literal["tokens", "words", "characters"]

MAX_UNITS = 20_000
"""`repetition` looks at so many words or tokens, from the start."""
_MAX_WORD_CHARACTERS = 200_000


def overlong(
    completion: str,
    completion_ids: Sequence[int],
    *,
    limit: Annotated[int, Gt(0)],
    zone: Annotated[int, Gt(0)],
) -> float:
    """0 up to `zone` tokens before the limit, then falling evenly to -1 at the limit and beyond.

    DAPO's soft penalty (arXiv:2503.14476) as a reward of its own. Tokens are the completion's, the stop
    token included.
    """
    return max(-1.0, min(0.0, (limit - zone - len(completion_ids)) / zone))


def length(
    completion: str,
    completion_ids: Sequence[int],
    *,
    target: Annotated[int, Gt(0)] | None = None,
    at_least: Annotated[int, Ge(0)] = 1,
    at_most: Annotated[int, Ge(0)] | None = None,
    unit: Unit = "tokens",
) -> float:
    """1 where the length lies within the bounds, else 0; with a target, less the further it is from that.

    At the target 1, at 0 and at twice the target or more 0, in a straight line between. Words are what
    white space divides.
    """
    size = _size(completion, completion_ids, unit)
    if size < at_least or (at_most is not None and size > at_most):
        return 0.0
    return 1.0 if target is None else max(0.0, 1.0 - abs(size - target) / target)


def brevity(
    completion: str,
    completion_ids: Sequence[int],
    *,
    discount: Annotated[float, Gt(0), Le(1)] = 0.999,
    free: Annotated[int, Ge(0)] = 0,
    unit: Unit = "tokens",
) -> float:
    """The discount once for every unit beyond the free ones: 1 for a short text, near 0 for a long one.

    A completion of white space says nothing and earns 0. It is added to the other rewards, so its weight
    has to be small: what is wrong and short must stay below what is right and long.
    """
    if not completion.strip():
        return 0.0
    return discount ** max(0, _size(completion, completion_ids, unit) - free)


def repetition(
    completion: str,
    completion_ids: Sequence[int],
    *,
    n: Annotated[int, Gt(0), Le(20)] = 3,
    unit: Literal["tokens", "words"] = "words",
) -> float:
    """Minus the share of n-grams that have come before in the completion: 0 for none, towards -1 for a loop.

    Words are what white space divides, in any case. Shorter than n there is nothing to repeat: 0. The
    first 20,000 words or tokens are looked at.
    """
    units: Iterable[object] = completion_ids
    if unit == "words":
        units = completion[:_MAX_WORD_CHARACTERS].casefold().split()
    looked_at = list(islice(units, MAX_UNITS))
    total = len(looked_at) - n + 1
    if total < 1:
        return 0.0
    distinct = len(set(zip(*(looked_at[start:] for start in range(n)), strict=False)))
    return distinct / total - 1.0


def _size(completion: str, completion_ids: Sequence[int], unit: Unit) -> int:
    match unit:
        case "tokens":
            return len(completion_ids)
        case "words":
            return len(completion.split())
        case "characters":
            return len(completion)
