"""Prompts as token ids: the chat template rendered, and tokenized without a second start token."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from muster.data.templates import rendered
from muster.errors import ConfigError, DataError
from muster.records import Sample

_BATCH = 256
_SHOWN = 5
_END_OF_TEXT = "<|endoftext|>"
_OURS = ("conversation", "tokenize", "add_generation_prompt", "return_tensors", "return_dict")


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any

    def __call__(self, text: Any, *, add_special_tokens: bool) -> Any:
        """`input_ids` for a list of texts."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """The conversation as text."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Ids by token."""
        ...


class EncodedPrompt(NamedTuple):
    """A sample with what the model reads of it."""

    sample: Sample
    ids: tuple[int, ...]
    text: str
    """As it was rendered: special tokens included."""


class EncodedPrompts(NamedTuple):
    """The prompts that fit, and the samples that were dropped for their length."""

    prompts: tuple[EncodedPrompt, ...]
    dropped: tuple[Sample, ...]


def encode_prompts(
    samples: Sequence[Sample],
    tokenizer: Tokenizer,
    *,
    max_prompt_tokens: int,
    chat_template_kwargs: Mapping[str, object] | None = None,
    overlong: Literal["refuse", "drop"] = "refuse",
) -> EncodedPrompts:
    """Token ids and text of every sample's prompt; longer ones than allowed are refused or dropped.

    A chat is rendered by the tokenizer's template, a raw text is started with the start token
    (end-of-text where the tokenizer has it, else bos, else eos); either way there is exactly one.
    """
    options = dict(chat_template_kwargs or {})
    if clash := [name for name in options if name in _OURS]:
        raise ConfigError(
            f"data.chat_template_kwargs sets {', '.join(clash)}, which Muster sets itself. Remove it."
        )
    texts = _texts(samples, tokenizer, options)
    prompts = [
        EncodedPrompt(sample, ids, text)
        for sample, ids, text in zip(samples, token_ids(texts, tokenizer), texts, strict=True)
    ]
    if empty := [prompt.sample.id for prompt in prompts if not prompt.ids]:
        raise DataError(f"The prompts of samples {', '.join(empty[:_SHOWN])} have no tokens.")
    fitting = tuple(prompt for prompt in prompts if len(prompt.ids) <= max_prompt_tokens)
    long = [prompt for prompt in prompts if len(prompt.ids) > max_prompt_tokens]
    if long and (overlong == "refuse" or not fitting):
        raise DataError(_too_long(long, len(prompts), max_prompt_tokens))
    return EncodedPrompts(fitting, tuple(prompt.sample for prompt in long))


def start_token(tokenizer: Tokenizer) -> str:
    """What a raw text starts with; empty where the tokenizer has no such token.

    End-of-text is what separates documents in pre-training. It comes before bos because the bos
    of some chat models opens a turn.
    """
    if _END_OF_TEXT in tokenizer.get_vocab():
        return _END_OF_TEXT
    return _special(tokenizer, "bos_token") or _special(tokenizer, "eos_token")


def _texts(samples: Sequence[Sample], tokenizer: Tokenizer, options: Mapping[str, object]) -> list[str]:
    """The prompts' texts with all their special tokens."""
    chats = [place for place, sample in enumerate(samples) if sample.text is None]
    if chats and not tokenizer.chat_template:
        raise ConfigError(
            "The model's tokenizer has no chat template, so the prompts can't be rendered as a chat. Set "
            "data.raw = true to give the model the text itself, or use an instruct model."
        )
    # Asking a tokenizer for its vocabulary takes as long as encoding a hundred prompts: once for all of them.
    start = start_token(tokenizer) if len(chats) < len(samples) else ""
    texts = [_started(sample.text or "", start) for sample in samples]
    rendered_chats = render_chats([samples[place] for place in chats], tokenizer, options)
    for place, text in zip(chats, rendered_chats, strict=True):
        texts[place] = text
    return texts


def _started(text: str, start: str) -> str:
    """A raw text with the start token in front, unless it has it."""
    return text if start and text.startswith(start) else start + text


def render_chats(
    samples: Sequence[Sample],
    tokenizer: Tokenizer,
    options: Mapping[str, object],
    *,
    add_generation_prompt: bool = True,
) -> list[str]:
    """The conversations of the samples as text, each with one start token at most; rendered under limits.

    Raises DataError where the template fails, or goes beyond one of the limits of `templates`.
    """
    bos = _special(tokenizer, "bos_token")

    def render(number: int) -> str:
        text = tokenizer.apply_chat_template(
            list(samples[number].messages),
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **options,
        )
        while bos and text.startswith(bos + bos):
            text = text.removeprefix(bos)
        return text

    name = str(getattr(tokenizer, "name_or_path", "") or "the tokenizer")
    return rendered(render, [sample.id for sample in samples], name) if samples else []


def _special(tokenizer: Tokenizer, name: str) -> str:
    """The text of one of the tokenizer's special tokens; empty where it has none of that name."""
    return str(getattr(tokenizer, name, None) or "")


def token_ids(texts: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Ids of the texts; special tokens are those that the texts spell out, none are added."""
    ids: list[tuple[int, ...]] = []
    for start in range(0, len(texts), _BATCH):
        batch = list(texts[start : start + _BATCH])
        ids.extend(map(tuple, tokenizer(batch, add_special_tokens=False)["input_ids"]))
    return ids


def _too_long(long: Sequence[EncodedPrompt], total: int, limit: int) -> str:
    shown = ", ".join(f"sample {prompt.sample.id} ({len(prompt.ids)})" for prompt in long[:_SHOWN])
    more = f" and {len(long) - _SHOWN} more" if len(long) > _SHOWN else ""
    return (
        f"{len(long)} of {total} prompts are longer than {limit} tokens: {shown}{more}. Raise "
        'data.max_prompt_tokens or model.max_tokens, or set data.overlong = "drop" to leave them out'
        f"{' (not all of them)' if len(long) == total else ''}."
    )
