"""A model of Llama's family as a GGUF file, for llama.cpp and what is built on it.

llama.cpp rotates neighbouring pairs of a head's values where transformers rotates halves, so the rows of
the query and key weights change their places. An output layer that is tied to the embedding is left out.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, TokenType, quants
from gguf.constants import LlamaFileType
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from muster.converted import END_FIELDS
from muster.errors import ConfigError

DType = Literal["f32", "f16", "bf16"]


@dataclass(frozen=True)
class _Precision:
    torch: torch.dtype
    stored: GGMLQuantizationType
    file: LlamaFileType
    tolerance: float
    """Nats by which logprobs may differ from those of the float32 weights."""


_PRECISIONS: dict[DType, _Precision] = {
    "f32": _Precision(torch.float32, GGMLQuantizationType.F32, LlamaFileType.ALL_F32, 1e-3),
    "f16": _Precision(torch.float16, GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16, 0.1),
    "bf16": _Precision(torch.bfloat16, GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16, 0.8),
}


@dataclass(frozen=True)
class Gguf:
    """A GGUF file is asked for, its matrices in this precision; vectors are always float32."""

    dtype: DType = "f16"

    @property
    def tolerance(self) -> float:
        """Nats by which logprobs may differ from the policy's: what the precision rounds away.

        The tensors themselves must be the rounded ones to the last bit.
        """
        return _PRECISIONS[self.dtype].tolerance

    @property
    def itemsize(self) -> int:
        """Bytes of a number in a matrix."""
        return _PRECISIONS[self.dtype].torch.itemsize


@dataclass(frozen=True)
class _Family:
    architecture: str
    has_permuted_heads: bool


FAMILIES = {
    "llama": _Family("llama", has_permuted_heads=True),
    "mistral": _Family("llama", has_permuted_heads=True),
}
"""By transformers' name of the model type."""

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

SPLIT_NAMES = ("llama-bpe", "qwen2", "tekken", "gpt-4o")
"""Ways of splitting text by a regular expression; the names are llama.cpp's."""


def refuse_unfit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stops: frozenset[int]) -> None:
    """Refuses what a GGUF file can't hold exactly, before any of it is written; raises ConfigError."""
    config = model.config
    reasons = [*_unfit_model(config), *_unfit_tokenizer(tokenizer, config)]
    if odd := [name for name, _ in model.named_parameters() if _name_of(name) is None]:
        reasons.append(f"it has {len(odd)} tensors that are no part of a plain Llama, such as {odd[0]}")
    if len(stops) > len(END_FIELDS):
        reasons.append(f"it ends at {len(stops)} tokens, and a file can name {len(END_FIELDS)}")
    if reasons:
        raise ConfigError(
            f"this {config.model_type} model can't become a GGUF file: {'; '.join(reasons)}. Export it as a "
            "folder (--to FOLDER --merge), which llama.cpp's own converter reads."
        )


def _unfit_model(config: PreTrainedConfig) -> Iterator[str]:
    if config.model_type not in FAMILIES:
        yield f"written are {', '.join(FAMILIES)}"
        return
    window = getattr(config, "sliding_window", None)
    if window is not None and window < config.max_position_embeddings:
        yield f"its attention has a window of {window}, which Llama's architecture has no place for"
    if config.hidden_act != "silu":
        yield f"its activation is {config.hidden_act}, and Llama's is silu"
    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in ("default", "linear"):
        yield f"its positions are scaled by {kind!r}; written are default and linear"


def _unfit_tokenizer(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> Iterator[str]:
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or _backend(tokenizer)["model"]["type"] != "BPE":
        yield "its tokenizer is no byte-level BPE"
        return
    backend = _backend(tokenizer)
    if backend["model"].get("byte_fallback") or backend["normalizer"] is not None:
        yield "its tokenizer is a sentence-piece one or rewrites its text; written are byte-level BPE ones"
    elif splitting(tokenizer) is None:
        yield "its tokenizer splits text in a way that llama.cpp has no name for"
    if len(tokenizer) > config.vocab_size:
        yield f"its tokenizer has {len(tokenizer)} tokens, and the model {config.vocab_size}"


def splitting(tokenizer: PreTrainedTokenizerFast) -> str | None:
    """llama.cpp's name of how the text is split before it is encoded; None where it has none."""
    first = _backend(tokenizer)["pre_tokenizer"] or {}
    parts = first.get("pretokenizers", [first])
    match [part.get("type") for part in parts]:
        case ["ByteLevel"] if parts[0]["use_regex"] and not parts[0]["add_prefix_space"]:
            return "gpt-2"
        case ["Digits", "ByteLevel"] if parts[0]["individual_digits"] and parts[1]["use_regex"]:
            return "smollm"
        case ["Split", "ByteLevel"] if not parts[1]["use_regex"]:
            regex = parts[0]["pattern"].get("Regex")
            return next((name for name in SPLIT_NAMES if GGUF_PRE_TOKENIZER_SPLITS[name] == regex), None)
        case _:
            return None


def _backend(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The tokenizer as its own library writes it down."""
    return json.loads(tokenizer.backend_tokenizer.to_str())


def write_gguf(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    stops: frozenset[int],
    gguf: Gguf,
    path: Path,
) -> None:
    """Writes the file; `refuse_unfit` has to have had no objection."""
    family = FAMILIES[model.config.model_type]
    precision = _PRECISIONS[gguf.dtype]
    writer = GGUFWriter(str(path), family.architecture)
    writer.add_name(path.stem)
    writer.add_file_type(precision.file)
    _add_settings(writer, model.config)
    _add_tokenizer(writer, tokenizer, model.config.vocab_size)
    _add_ends(writer, tokenizer, stops)
    for theirs, tensor in _tensors(model, family):
        is_matrix = tensor.ndim > 1
        stored = precision.stored if is_matrix else GGMLQuantizationType.F32
        values = np.ascontiguousarray(tensor.cpu().numpy())
        writer.add_tensor(theirs, quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_stored(model: PreTrainedModel, gguf: Gguf) -> PreTrainedModel:
    """The model with its matrices rounded as the file rounds them, in place."""
    precision = _PRECISIONS[gguf.dtype].torch
    with torch.no_grad():
        for _, tensor in model.named_parameters():
            if tensor.ndim > 1:
                tensor.copy_(tensor.to(precision))
    return model


def _add_settings(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def tokens_of(tokenizer: PreTrainedTokenizerBase, num_vocab: int) -> list[str]:
    """The tokens by id; ids that the model has beyond the tokenizer's are filled up, as llama.cpp does."""
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    return [names.get(number, f"[PAD{number}]") for number in range(num_vocab)]


def _kinds_of(tokenizer: PreTrainedTokenizerFast, num_vocab: int) -> Iterator[TokenType]:
    known, added = set(tokenizer.get_vocab().values()), tokenizer.added_tokens_decoder
    for number in range(num_vocab):
        if number not in known:
            yield TokenType.UNUSED
        elif number in added:
            yield TokenType.CONTROL if added[number].special else TokenType.USER_DEFINED
        else:
            yield TokenType.NORMAL


def _add_tokenizer(writer: GGUFWriter, tokenizer: PreTrainedTokenizerFast, num_vocab: int) -> None:
    model = _backend(tokenizer)["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting(tokenizer) or "default")
    writer.add_token_list(tokens_of(tokenizer, num_vocab))
    writer.add_token_types(list(_kinds_of(tokenizer, num_vocab)))
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]])
    writer.add_add_bos_token(_starts_with_bos(tokenizer))
    writer.add_add_eos_token(False)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _starts_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    ids = tokenizer("x")["input_ids"]
    return isinstance(ids, list) and ids[:1] == [tokenizer.bos_token_id]


def special_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """Ids of the tokens that begin, end and pad, as the file holds them: the end pads where nothing does."""
    end = tokenizer.eos_token_id
    pad = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    named = {"bos": tokenizer.bos_token_id, "eos": end, "pad": pad}
    return {name: number if isinstance(number, int) else None for name, number in named.items()}


def _add_ends(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, stops: frozenset[int]) -> None:
    """Tokens that begin, pad and end: the tokenizer's own end comes first."""
    special = special_of(tokenizer)
    known: list[tuple[Callable[[int], None], object]] = [
        (writer.add_bos_token_id, special["bos"]),
        (writer.add_pad_token_id, special["pad"]),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
    ]
    own = special["eos"]
    ends = sorted(stops, key=lambda token: (token != own, token))
    known += zip(
        (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id), ends, strict=False
    )
    for add, number in known:
        if isinstance(number, int):
            add(number)


def _tensors(model: PreTrainedModel, family: _Family) -> Iterator[tuple[str, Tensor]]:
    """Each parameter under the file's name, in float32; tied ones come once, under the embedding's."""
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    for ours, param in model.named_parameters():
        theirs = _name_of(ours)
        assert theirs is not None, ours
        tensor = param.detach().to("cpu", torch.float32)
        part = theirs.split(".")[-2]
        if family.has_permuted_heads and part in heads:
            tensor = pairs_from_halves(tensor, heads[part])
        yield theirs, tensor


def pairs_from_halves(weight: Tensor, num_heads: int) -> Tensor:
    """[heads * size, in] with each head's row pairs (i, i + size / 2) moved next to each other."""
    halves = weight.unflatten(0, (num_heads, 2, -1))
    return halves.transpose(1, 2).reshape(weight.shape)


def _name_of(ours: str) -> str | None:
    """The file's name of a parameter; None for one that no Llama has."""
    if ours in OUTSIDE:
        return OUTSIDE[ours]
    match ours.split("."):
        case ["model", "layers", number, *inner, "weight"] if ".".join(inner) in LAYER:
            return f"blk.{number}.{LAYER['.'.join(inner)]}.weight"
        case _:
            return None
