"""A graded reward for extracting facts as one flat JSON object: credit grows with each thing done right.

0.0  not JSON (code fences and words around it included)
0.2  JSON, but not an object
0.3  an object with one pair or none
0.5  several pairs, some key twice
0.7  several pairs, some value not in the text
1.0  several pairs, and every value occurs in the text, in capitals or not

Some ways lead to 1.0 that extract nothing: an empty string or a single letter occurs in every text,
one fact can be given under many keys, and a passage of the text is a value too. `strict` closes these,
for passages of more than 12 words.
"""

import json
import re
from collections.abc import Mapping

from muster.rewards.strict_json import Pairs, parsed

LEVELS = (0.0, 0.2, 0.3, 0.5, 0.7, 1.0)
MAX_FACT_WORDS = 12
"""`strict`: a longer value is a passage, not a fact."""


class _Object:
    """An object with its pairs as written, duplicates included."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs


class _Literal(str):
    """A number as it is written: how many digits it has is nobody's limit."""


def json_extraction(
    completion: str,
    prompt: str,
    columns: Mapping[str, object],
    *,
    text: str | None = None,
    strict: bool = False,
) -> float | None:
    """The level that the completion reaches; the text is the last user message, or the column `text` names.

    With `strict`, keys are compared without regard to case and must not be blank, and a value counts
    only if it is a string or number of at most 12 words, given once, and stands in the text as whole
    words. None where the row has no text.
    """
    source = prompt if text is None else columns[text]
    if not isinstance(source, str) or not source.strip():
        return None
    try:
        value = parsed(completion, make_object=_Object, make_number=_Literal)
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(value, _Object):
        return 0.2
    if len(value.pairs) <= 1:
        return 0.3
    keys = [" ".join(key.casefold().split()) if strict else key for key, _ in value.pairs]
    if len(set(keys)) < len(keys):
        return 0.5
    values = [item for _, item in value.pairs]
    found = _are_facts(keys, values, source) if strict else _occur(values, source)
    return 1.0 if found else 0.7


def _occur(values: list[object], source: str) -> bool:
    """Every value occurs in the text; lists and objects never do."""
    lowered = source.casefold()
    return all((written := _written(value)) is not None and written.casefold() in lowered for value in values)


def _written(value: object) -> str | None:
    """A plain value as JSON writes it, without quotes; None for a list or an object."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if value is None or isinstance(value, bool) else None


def _are_facts(keys: list[str], values: list[object], source: str) -> bool:
    """Every pair says something of its own that the text says too."""
    texts = [" ".join(value.casefold().split()) for value in values if isinstance(value, str)]
    if len(texts) < len(values) or len(set(texts)) < len(texts) or not all(keys):
        return False
    flat = " ".join(source.casefold().split())
    return all(_is_fact(text, flat) for text in texts)


def _is_fact(text: str, source: str) -> bool:
    """The text is short, holds a letter or digit, and stands in the source as whole words."""
    if len(text.split()) > MAX_FACT_WORDS or not any(character.isalnum() for character in text):
        return False
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", source) is not None
