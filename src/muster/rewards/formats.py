"""A reward for form: the completion consists of the tagged parts it was asked for."""

import re
from typing import Annotated

from annotated_types import MinLen
from pydantic import AfterValidator


def _are_names(tags: tuple[str, ...]) -> tuple[str, ...]:
    """The tags, refused where one is no name or comes twice."""
    if bad := [tag for tag in tags if not re.fullmatch(r"[A-Za-z][\w-]*", tag)]:
        raise ValueError(f"{bad[0]!r} is no name of a tag; write think for <think>...</think>")
    if len(set(tags)) < len(tags):
        raise ValueError("a tag comes twice")
    return tags


def tagged(
    completion: str,
    *,
    tags: Annotated[tuple[str, ...], MinLen(1), AfterValidator(_are_names)] = ("think", "answer"),
    opened: bool = False,
) -> float:
    """1 where the completion is these tags in this order, each once, and nothing else, else 0.

    Every part has to hold more than white space, which may stand around the tags too. Tags are written
    in lower or upper case as given, without attributes. With `opened` the prompt has already opened the
    first tag, and the completion starts inside it.
    """
    rest = f"<{tags[0]}>{completion}" if opened else completion
    if any(rest.count(mark) != 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
        return 0.0
    for tag in tags:
        before, _, rest = rest.partition(f"<{tag}>")
        content, closing, rest = rest.partition(f"</{tag}>")
        if before.strip() or not closing or not content.strip():
            return 0.0
    return float(not rest.strip())
