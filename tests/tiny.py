"""Models and a tokenizer small enough to build in code, of every family that tests must cover."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from muster.policy import Policy

END = "<|im_end|>"
START = "<|endoftext|>"
SPECIAL = (START, "<|im_start|>", END)

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

COMMON: dict[str, object] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 2,
}

MIXED = ["sliding_attention", "full_attention"]
"""A window in the first of the two layers only."""

CONFIGS: dict[str, tuple[type[PreTrainedConfig], dict[str, object]]] = {
    "llama": (LlamaConfig, {"tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, {"use_sliding_window": False}),
    "qwen3": (Qwen3Config, {"use_sliding_window": False}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "gemma": (GemmaConfig, {}),
    "granite": (GraniteConfig, {"logits_scaling": 3.0, "attention_multiplier": 0.3}),
    "cohere": (CohereConfig, {"logit_scale": 0.25}),
    "gpt2": (GPT2Config, {}),
    # Attention through a short window, and soft-capped: neither can share prompts.
    "mistral_windowed": (MistralConfig, {"sliding_window": 16}),
    "gemma2": (Gemma2Config, {"sliding_window": 512, "query_pre_attn_scalar": 8}),
    "gemma3": (Gemma3TextConfig, {"sliding_window": 16, "query_pre_attn_scalar": 8, "layer_types": MIXED}),
}

SHARING = ("llama", "qwen2", "qwen3", "mistral", "gemma", "granite", "cohere", "gpt2")
"""Families whose attention can share prompts."""
PLAIN = ("mistral_windowed", "gemma2", "gemma3")
"""Families that are trained on plain padded rows."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: 256 bytes and three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def tiny_model(
    family: str = "llama", *, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides: Any
) -> PreTrainedModel:
    """A model of the family with random weights, in evaluation mode."""
    config_class, own = CONFIGS[family]
    common = dict(COMMON)
    if family == "gpt2":
        common = {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 512,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 2,
        }
    config = config_class(**{"vocab_size": 259, **common, **own, **overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        # The default initialization is so small that attention hardly matters: make it matter.
        for param in model.parameters():
            if param.ndim > 1:
                param.data.normal_(0.0, 0.2)
    return model.to(dtype).eval()


def tiny_policy(
    family: str = "llama",
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    max_tokens: int = 256,
    **overrides: Any,
) -> Policy:
    """A policy over a tiny model."""
    return Policy(
        tiny_model(family, dtype=dtype, seed=seed, **overrides), tiny_tokenizer(), max_tokens=max_tokens
    )


def save_tiny_model(folder: Path, family: str = "llama", **overrides: Any) -> Path:
    """A folder with a tiny model and its tokenizer, as a user's model would be."""
    tiny_model(family, **overrides).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def ids_of(text: str) -> tuple[int, ...]:
    """The text's tokens."""
    return tuple(tiny_tokenizer()(text, add_special_tokens=False)["input_ids"])


def texts(values: Iterable[tuple[int, ...]]) -> list[str]:
    """The tokens' texts."""
    tokenizer = tiny_tokenizer()
    return [str(tokenizer.decode(list(ids))) for ids in values]
