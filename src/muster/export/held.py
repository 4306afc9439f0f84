"""What the trained policy and what was written are both asked, and what they answer.

Axes: T positions of a prompt, V vocabulary.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from muster.pretrained import stop_ids

NUM_PROMPTS, NUM_TOKENS = 2, 48
"""Held prompts, and tokens of each, whose whole next-token distributions are compared."""

TEXTS = (
    "Muster gathers a group of answers to one question and makes the better ones more likely.",
    "  two  blanks,\ttab,\n\nline breaks \r\n and a trailing blank ",
    "0 1 12 123 1234 12345.678 -9,876,543 3e-10 0x1F ²³ ½ Ⅷ ٣",
    "def f(x: list[int]) -> str:\n    return f'{x!r}' if x else \"none\"  # done",
    "don't DON'T we'll you're I'm it's l'été",
    "Grüße, naïve café, Ελληνικά, русский, 日本語のテキスト, 中文, 한국어, עברית, العربية, हिन्दी",
    "e\u0301 and é, \u00a0 no-break, \u200b zero width, \ufeff mark, 👩‍👩‍👧‍👦 🏳️‍🌈",
    '{"a": [1, 2, {"b": null}], "c": "\\u0041"}<|x|> </s> <s> [INST] <|im_end|><|endoftext|>',
)
"""Texts that the tokenizers of two copies of a model must cut alike."""

CONVERSATION = (
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "And\n  3 + 3?"},
)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What is asked; plain values, so that it can be sent to another process."""

    prompts: tuple[tuple[int, ...], ...]
    """Token ids."""
    texts: tuple[str, ...] = TEXTS
    conversation: tuple[Mapping[str, str], ...] = CONVERSATION
    threads: int = 1
    """Sums are cut by threads, so both sides compute with as many."""

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> "Held":
        """The start of the first prompts, and a text that has every special token in it."""
        known = set(tokenizer.all_special_tokens)
        special = " ".join(token for token in tokenizer.get_vocab() if token in known)
        return cls(
            prompts=tuple(tuple(ids[:NUM_TOKENS]) for ids in prompts[:NUM_PROMPTS]),
            texts=(*TEXTS, special),
            threads=torch.get_num_threads(),
        )

    @classmethod
    def from_plain(cls, values: Mapping[str, object]) -> "Held":
        """What `dataclasses.asdict` and JSON made of it."""
        plain = json.loads(json.dumps(values))
        return cls(
            prompts=tuple(tuple(ids) for ids in plain["prompts"]),
            texts=tuple(plain["texts"]),
            conversation=tuple(plain["conversation"]),
            threads=plain["threads"],
        )


@dataclass(frozen=True, kw_only=True)
class Said:
    """All of an answer but its logprobs: what must be equal."""

    tensors: Mapping[str, str]
    """SHA-256 of each trained parameter in float32, by name; an adapter's own alone, tied ones once."""
    scales: Mapping[str, float]
    """What the product of an adapter's matrices is multiplied by, by layer; empty without one."""
    vocabulary: str
    """SHA-256 of the tokens and their ids."""
    texts: Sequence[Sequence[int]]
    """Token ids of each held text."""
    template: str | None
    conversation: Sequence[int] | str | None
    """Token ids of the held conversation; the template's error; None without a template."""
    special: Mapping[str, int | None]
    """Ids of the tokens that begin, end and pad."""
    stop_ids: Sequence[int]
    """Every token that ends a completion."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An answer."""

    said: Said
    logprobs: Sequence[Tensor]
    """Of the next token at each position of each held prompt, [T V] each, in nats."""

    def save(self, folder: Path) -> None:
        """Writes it as JSON and safetensors."""
        (folder / "said.json").write_text(json.dumps(asdict(self.said)), encoding="utf-8")
        save_file(
            {str(number): tensor.contiguous() for number, tensor in enumerate(self.logprobs)},
            folder / "logprobs.safetensors",
        )

    @classmethod
    def load(cls, folder: Path) -> "Reading":
        """What `save` wrote."""
        tensors = load_file(folder / "logprobs.safetensors")
        said = Said(**json.loads((folder / "said.json").read_text(encoding="utf-8")))
        return cls(said=said, logprobs=[tensors[str(number)] for number in range(len(tensors))])


def ask(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    held: Held,
    *,
    stops: Sequence[int] | None = None,
) -> Reading:
    """The model's and tokenizer's answer; `stops` where a file names them beside the model."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    if not isinstance(base, PreTrainedModel):
        raise TypeError(f"{type(base).__name__} is no transformers model")
    own = sorted(stop_ids(base, tokenizer)) if stops is None else sorted(stops)
    said = Said(
        tensors={name: _fingerprint(tensor) for name, tensor in trained_tensors(model)},
        scales=_scales(model),
        vocabulary=fingerprint_of_tokens(tokenizer.get_vocab()),
        texts=[list(tokenizer(text)["input_ids"]) for text in held.texts],
        template=_template(tokenizer),
        conversation=_converse(tokenizer, held.conversation),
        special={
            "bos": _whole(tokenizer.bos_token_id),
            "eos": _whole(tokenizer.eos_token_id),
            "pad": _whole(tokenizer.pad_token_id),
        },
        stop_ids=own,
    )
    # What JSON makes of it, so that both sides compare the same kinds of values.
    said = Said(**json.loads(json.dumps(asdict(said))))
    return Reading(said=said, logprobs=next_logprobs(model, held.prompts))


def fingerprint_of_tokens(ids: Mapping[str, int]) -> str:
    """SHA-256 of tokens and their ids."""
    return _digest(json.dumps(sorted(ids.items())).encode())


def trained_tensors(model: PreTrainedModel | PeftModel) -> list[tuple[str, Tensor]]:
    """What an export must hold: an adapter's tensors, or every parameter, tied ones once."""
    if isinstance(model, PeftModel):
        return sorted(get_peft_model_state_dict(model).items())
    return sorted(model.named_parameters())


@torch.no_grad()
def next_logprobs(model: nn.Module, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """[T V] logprobs of the next token at each position of each prompt, in float32 on the CPU."""
    device = next(model.parameters()).device
    found = []
    for ids in prompts:
        logits = model(input_ids=torch.tensor([list(ids)], device=device), use_cache=False).logits
        found.append(logits[0].float().log_softmax(-1).cpu())
    return found


def _scales(model: nn.Module) -> dict[str, float]:
    """By layer, where an adapter is on it."""
    return {
        name: float(scale)
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
        for scale in module.scaling.values()
    }


def _template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    template = tokenizer.chat_template
    return template if template is None or isinstance(template, str) else json.dumps(template)


def _converse(
    tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Mapping[str, str]]
) -> list[int] | str | None:
    if tokenizer.chat_template is None:
        return None
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in conversation], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:
        # A template may refuse what it doesn't know; its copy must refuse it in the same words.
        return f"{type(error).__name__}: {error}"
    return list(tokenizer(str(text), add_special_tokens=False)["input_ids"])


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _fingerprint(tensor: Tensor) -> str:
    """Of shape and values, whatever the precision they are stored in."""
    values = tensor.detach().to("cpu", torch.float32).contiguous()
    return _digest(str(tuple(values.shape)).encode(), values.numpy().data)


def _digest(*parts: "bytes | memoryview") -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
