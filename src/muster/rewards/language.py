"""A reward for writing in the wanted language (extra `language`).

py3langid tells languages apart by sequences of bytes, offline and without drawing random numbers, so that
the same text always has the same score.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated

from annotated_types import Ge
from pydantic import AfterValidator

from muster.errors import RewardError
from muster.nearest import did_you_mean

_PIECE = 2_000


def _are_known(codes: tuple[str, ...]) -> tuple[str, ...]:
    """The languages' codes, refused where the library doesn't know one."""
    known = _ranking()("").keys()
    if unknown := [code for code in codes if code not in known]:
        raise ValueError(
            f"{unknown[0]!r} is no language that can be told; a code of ISO 639 is expected, such as "
            f"'en' or 'zh'.{did_you_mean(unknown[0], known)}"
        )
    return codes


def language(
    completion: str,
    *,
    wanted: Annotated[str, AfterValidator(lambda code: _are_known((code,))[0])] = "en",
    among: Annotated[tuple[str, ...], AfterValidator(_are_known)] = (),
    min_letters: Annotated[int, Ge(1)] = 20,
) -> float:
    """The probability that the completion is in the wanted language, from 0 to 1.

    Of a long text, 2,000 characters each from its start, middle and end are read, and the least of their
    probabilities counts: a change of language on the way is seen. A piece of fewer letters than
    `min_letters` says nothing; where all do, the score is 0. With `among` only those languages and the
    wanted one are thought of: that tells near relatives apart which share its words.
    """
    pieces = [piece for piece in _pieces(completion) if sum(map(str.isalpha, piece)) >= min_letters]
    return min((_probability(piece, wanted, among) for piece in pieces), default=0.0)


def _probability(text: str, wanted: str, among: tuple[str, ...]) -> float:
    ranking = _ranking()(text)
    considered = {wanted, *among} if among else ranking.keys()
    return ranking[wanted] / sum(ranking[code] for code in considered)


def _pieces(text: str) -> list[str]:
    """All of a short text; start, middle and end of a long one."""
    if len(text) <= 3 * _PIECE:
        return [text]
    middle = (len(text) - _PIECE) // 2
    return [text[:_PIECE], text[middle : middle + _PIECE], text[-_PIECE:]]


@lru_cache(maxsize=1)
def _ranking() -> Callable[[str], dict[str, float]]:
    """What gives the probability of each language that the library knows, by its code."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise RewardError(
            f"The reward 'language' can't be used: {error}. Install muster-rl[language]."
        ) from error
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return lambda text: dict(identifier.rank(text))
