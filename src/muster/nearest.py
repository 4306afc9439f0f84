"""The known name that an unknown one was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest known name; empty where none is near."""
    names = list(known)
    same = [candidate for candidate in names if candidate.casefold() == name.casefold()]
    mixed_up = [candidate for candidate in names if sorted(candidate) == sorted(name)]
    close = same or mixed_up or get_close_matches(name, names, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
