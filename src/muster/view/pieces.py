"""Token ids as the pieces of text that they stand for, by the tokenizer that lies in the run's folder."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from muster.store import TOKENIZER
from muster.view.growing import regular

MAX_BYTES = 128 * 2**20
PLACES = ("", "final")
"""Where in a run's folder a tokenizer may lie; an older run has that of its exported model only."""
_UNREADABLE = "\ufffd"


def tokenizer_file(folder: Path) -> Path | None:
    """Where the run's tokenizer is; None where there is none."""
    for place in PLACES:
        path = folder / place / TOKENIZER
        found = regular(path)
        if found is not None and found.st_size <= MAX_BYTES:
            return path
    return None


def find_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer in this file; None where it can't be read."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # that is what tokenizers raises for a broken file
        return None


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token; of several that make up one character, the last has all of it."""
    stream = DecodeStream(skip_special_tokens=False)
    pieces: list[str] = []
    for token in ids:
        try:
            pieces.append(stream.step(tokenizer, token) or "")
        except Exception:  # an id outside the vocabulary, or bytes that never become text
            pieces.append(_UNREADABLE)
            stream = DecodeStream(skip_special_tokens=False)
    return pieces
