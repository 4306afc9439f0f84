"""The common decoder families in few operations a token: one product for queries, keys and values.

Same weights, same order of layers as transformers' own modules; what goes is their bookkeeping, which
at one token a row costs as much as the arithmetic. Whoever uses it compares both at start.

Axes: N tokens, E hidden size, H query heads, K key-value heads, D head size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import SiLUActivation
from transformers.models.gemma.modeling_gemma import GemmaModel
from transformers.models.llama.modeling_llama import LlamaModel
from transformers.models.mistral.modeling_mistral import MistralModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

from muster.attention import PrefillLayout, shared_prefix_attention
from muster.cache import DecodeCache
from muster.engines.products import KINDS, Product, laid_out_gated, own_weight, weight_and_bias

FAMILIES = (LlamaModel, MistralModel, Qwen2Model, Qwen3Model, GemmaModel)
"""Backbones that are built as this module computes: exactly these classes, nothing derived from them."""

Norm = Callable[[Tensor], Tensor]


class _Layer(NamedTuple):
    attention: nn.Module
    """transformers' own, for its scale and number."""
    before_attention: Norm
    query_key_value: Product
    query_norm: Norm | None
    key_norm: Norm | None
    output: Product
    before_mlp: Norm
    gated: Product
    """To the width between the two products of the perceptron."""
    down: Product


class FusedBackbone:
    """Hidden states under a shared-prefix layout, by weights as they are when this is made."""

    def __init__(self, backbone: nn.Module, kind: str) -> None:
        model: Any = backbone
        self.embed: nn.Module = model.embed_tokens
        self.rotary: nn.Module = model.rotary_emb
        self.norm = _norm(model.norm)
        self.layers = [_layer(layer, kind) for layer in model.layers]

    def __call__(self, ids: Tensor, positions: Tensor, layout: PrefillLayout | DecodeCache) -> Tensor:
        """Final hidden states [N E]; ids and positions are [1 N] in a prefill and [N 1] in decoding."""
        hidden = self.embed(ids)
        cos, sin = (x.flatten(0, 1)[:, None] for x in self.rotary(hidden, position_ids=positions))
        half = sin.shape[-1] // 2
        turns = (cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1))
        hidden = hidden.flatten(0, 1)
        for layer in self.layers:
            hidden = layer.output(_attend(layer, hidden, turns, layout)).add_(hidden)
            hidden = layer.down(layer.gated(layer.before_mlp(hidden))).add_(hidden)
        return self.norm(hidden)


def is_known(backbone: nn.Module) -> bool:
    """Whether the backbone is of a family that this module computes, with linear layers as they come."""
    if type(backbone) not in FAMILIES:
        return False
    model: Any = backbone
    return all(own_weight(module) is not None for layer in model.layers for module in _projections(layer))


def _projections(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    inputs = [attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj]
    return [*inputs, attention.o_proj, mlp.down_proj]


def _attend(
    layer: _Layer, hidden: Tensor, turns: tuple[Tensor, Tensor], layout: PrefillLayout | DecodeCache
) -> Tensor:
    """Attention output [N H*D], before its projection."""
    module: Any = layer.attention
    size = module.head_dim
    heads = layer.query_key_value(layer.before_attention(hidden)).view(len(hidden), -1, size)
    num_kv = heads.shape[1] // (module.num_key_value_groups + 2)
    query_key, value = heads[:, :-num_kv], heads[:, -num_kv:]
    if layer.query_norm is not None and layer.key_norm is not None:
        parts = (layer.query_norm(query_key[:, :-num_kv]), layer.key_norm(query_key[:, -num_kv:]))
        query_key = torch.cat(parts, dim=1)
    # Rotary embedding (arXiv:2104.09864): the halves of a head are the two coordinates that turn.
    query_key = torch.addcmul(query_key * turns[0], query_key.roll(size // 2, dims=-1), turns[1])
    query, key = query_key[:, :-num_kv], query_key[:, -num_kv:]
    if isinstance(layout, DecodeCache):
        return layout.attend(module.layer_idx, query, key, value, module.scaling).flatten(1)
    query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
    output, _ = shared_prefix_attention(
        module, query, key, value, None, scaling=module.scaling, layout=layout
    )
    return output[0].flatten(1)


def _layer(layer: Any, kind: str) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    has_norms = hasattr(attention, "q_norm")
    return _Layer(
        attention=attention,
        before_attention=_norm(layer.input_layernorm),
        query_key_value=_joined([attention.q_proj, attention.k_proj, attention.v_proj], kind),
        query_norm=_norm(attention.q_norm) if has_norms else None,
        key_norm=_norm(attention.k_norm) if has_norms else None,
        output=_product(attention.o_proj, kind),
        before_mlp=_norm(layer.post_attention_layernorm),
        gated=_gated(mlp, kind),
        down=_product(mlp.down_proj, kind),
    )


def _gated(mlp: Any, kind: str) -> Product:
    """The activation of one product times another (arXiv:2002.05202)."""
    activation: Callable[[Tensor], Tensor] = mlp.act_fn
    if kind == "laid_out" and isinstance(activation, nn.SiLU | SiLUActivation):
        (gate, gate_bias), (up, up_bias) = weight_and_bias(mlp.gate_proj), weight_and_bias(mlp.up_proj)
        return laid_out_gated(gate, up, (gate_bias, up_bias))
    gate_of, up_of = _product(mlp.gate_proj, kind), _product(mlp.up_proj, kind)
    return lambda x: activation(gate_of(x)).mul_(up_of(x))


def _norm(module: Any) -> Norm:
    """Root mean square norm (arXiv:1910.07467); Gemma stores how far its weight is from 1."""
    is_gemma = type(module).__name__.startswith("Gemma")
    weight = 1 + module.weight if is_gemma else module.weight
    eps = module.eps if is_gemma else module.variance_epsilon
    return lambda x: F.rms_norm(x, weight.shape, weight, eps)


def _product(module: nn.Module, kind: str) -> Product:
    # The usual product needs no copy, so an adapter isn't added up for it either.
    return module if kind == "linear" else KINDS[kind](*weight_and_bias(module))


def _joined(modules: list[nn.Module], kind: str) -> Product:
    """The outputs of several layers side by side; one product where weights are copied anyway."""
    if kind != "laid_out":
        products = [_product(module, kind) for module in modules]
        return lambda x: torch.cat([product(x) for product in products], dim=-1)
    weights, biases = zip(*map(weight_and_bias, modules), strict=True)
    bias = None if biases[0] is None else torch.cat(biases)
    return KINDS[kind](torch.cat(weights), bias)
