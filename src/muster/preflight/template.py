"""Whether the chat template ends the model's turns with a token at which sampling stops."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from muster.data import render_chats
from muster.errors import DataError
from muster.records import Sample

_ANSWER = "An answer."


class TurnEnd(NamedTuple):
    """What the chat template puts after an answer."""

    token: str | None
    """The first token after the answer; None where there is none."""
    stops: bool
    """Sampling ends at it, so a model that was taught this template can end its answers."""


def turn_end(
    sample: Sample,
    tokenizer: PreTrainedTokenizerBase,
    *,
    stop_ids: Collection[int],
    stop_strings: Sequence[str],
    chat_template_kwargs: Mapping[str, object],
) -> TurnEnd | None:
    """What follows an answer to this sample; None for a raw prompt, or a template that renders no answer."""
    if not sample.messages or not tokenizer.chat_template:
        return None
    answer = {"role": "assistant", "content": _ANSWER}
    answered = replace(sample, messages=(*sample.messages, answer))
    try:
        [text] = render_chats([answered], tokenizer, chat_template_kwargs, add_generation_prompt=False)
    except DataError:  # Templates refuse what they don't render.
        return None
    _, found, rest = text.rpartition(_ANSWER)
    if not found:
        return None
    rest = rest.lstrip(" ")
    ids = tokenizer(rest, add_special_tokens=False)["input_ids"] if rest else []
    if not ids:
        return TurnEnd(None, stops=False)
    return TurnEnd(
        str(tokenizer.decode(ids[:1])), stops=ids[0] in stop_ids or any(s in rest for s in stop_strings)
    )
