"""A GGUF file small enough to write in a test: a tiny Llama whose weights are those of `tiny_model`."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from tokenizers import pre_tokenizers
from transformers import LlamaForCausalLM

from tiny import END, SPECIAL, START, TEMPLATE, tiny_model

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
SPACES = "\u0120\u0120"
"""Two blanks as one byte-level token."""


def write_tiny_gguf(path: Path) -> Path:
    """Writes the file; its last token is two blanks, where that of `tiny_tokenizer` is a byte."""
    config = tiny_model().config
    writer = GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    for name, tensor in _tensors():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter) -> None:
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())[:-1], SPACES]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_bos_token_id(tokens.index(START))
    writer.add_eos_token_id(tokens.index(END))
    writer.add_unk_token_id(tokens.index(START))
    writer.add_chat_template(TEMPLATE)


def _tensors() -> list[tuple[str, np.ndarray]]:
    """The weights under the names of GGUF, which stores the rotated halves of each head interleaved."""
    model = tiny_model()
    assert isinstance(model, LlamaForCausalLM)
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    tensors = [
        ("token_embd.weight", model.model.embed_tokens.weight.detach().numpy()),
        ("output_norm.weight", model.model.norm.weight.detach().numpy()),
    ]
    for number, layer in enumerate(model.model.layers.children()):
        for name, theirs in NAMES.items():
            weight = layer.get_parameter(f"{name}.weight").detach().numpy()
            if theirs in heads:
                count, inner = heads[theirs], weight.shape[1]
                weight = weight.reshape(count, 2, -1, inner).swapaxes(1, 2).reshape(-1, inner)
            tensors.append((f"blk.{number}.{theirs}.weight", np.ascontiguousarray(weight)))
    return tensors
