"""Shared-prefix attention: a prompt's keys and values are computed once for its whole group.

One attention function serves both sides of a run. In the update, a packed row holds each prompt
followed by its completions (`PackedLayout`): every completion sees its prompt and itself, no square
mask over the row is ever built. In sampling, one new token per rollout attends to the prompt's keys,
stored once per group, and to its own (`DecodeCache`).

transformers hands both through its attention interface: the layout travels as an extra keyword of
the model's call, so it is still there when gradient checkpointing recomputes a layer. Without a
layout the function is transformers' own SDPA, so ordinary calls of the model keep working.

Axes: B completions of a group, L packed positions, C longest completion, P prompt, H query heads,
K key-value heads, D head size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from muster.cache import DecodeCache

NAME = "muster_shared_prefix"
_PADDING_TOKENS = 8
"""Padding of a completion that costs less than another bucket."""


class GroupSpan(NamedTuple):
    """Where a group lies in a packed row: its prompt, then its completions one after the other."""

    start: int
    prompt: int
    """Length of the prompt, in tokens."""
    completions: tuple[int, ...]
    """Lengths of the completions, in tokens; may hold zeros. In any order, but rising is fastest."""

    @property
    def end(self) -> int:
        """One past the group's last position."""
        return self.start + self.prompt + sum(self.completions)


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """The groups of a packed row, in order and without gaps."""

    groups: tuple[GroupSpan, ...]


@dataclass(frozen=True, eq=False)
class PrefillLayout:
    """Prompts one after the other; their keys and values are kept in the cache on the way."""

    packed: PackedLayout
    cache: DecodeCache


Layout = PackedLayout | PrefillLayout | DecodeCache


def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention output [1 or R, L, H, D], as transformers' attention interface asks for it."""
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(layout, DecodeCache):
        new = (query[:, :, 0], key[:, :, 0], value[:, :, 0])
        return layout.attend(cast(int, module.layer_idx), *new, scale)[:, None], None
    if isinstance(layout, PrefillLayout):
        layout.cache.store_prompts(cast(int, module.layer_idx), key, value)
        layout = layout.packed
    outputs = [out for span in layout.groups for out in _group_outputs(query, key, value, scale, span)]
    return torch.cat(outputs, dim=1), None


def _group_outputs(query: Tensor, key: Tensor, value: Tensor, scale: float, span: GroupSpan) -> list[Tensor]:
    """The prompt's output [1 P H D] and, one after the other, the completions' [1 N H D]."""
    split = span.start + span.prompt
    prompt = [x[:, :, span.start : split] for x in (query, key, value)]
    output = causal_attention(prompt[0], prompt[1], prompt[2], scale, repeats=_wants_own_keys(query))
    outputs = [output.transpose(1, 2)]
    start = split
    for lengths in length_buckets(span.completions):
        end = start + sum(lengths)
        own = [x[0, :, start:end].transpose(0, 1) for x in (query, key, value)]
        outputs.append(_completion_outputs(own, prompt[1:], scale, lengths))
        start = end
    return outputs


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, *, repeats: bool) -> Tensor:
    """[1 H P D] of positions that see themselves and those before: [1 H P D] over [1 K P D].

    `repeats` gives each query head its own copy of the key head that it shares with others.
    """
    shared = query.shape[1] // key.shape[1]
    if repeats and shared > 1:
        key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )


def _wants_own_keys(query: Tensor) -> bool:
    """Whether the device attends in one pass only where no heads share keys.

    A GPU's kernel for those that do takes 16 bits; beyond these torch would form the scores of all
    positions with all others, and keep them for the backward pass.
    """
    kind = query.device.type
    is_low = query.dtype in (torch.bfloat16, torch.float16)
    return kind != "cpu" and not (is_low or (kind == "cuda" and torch.is_autocast_enabled(kind)))


def length_buckets(lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """Neighbours that are padded to one length: none is padded by more than a quarter, or a few tokens.

    In packed rows completions rise in length, so that few buckets do.
    """
    buckets: list[list[int]] = []
    for length in lengths:
        if not buckets or not 0 <= length - buckets[-1][0] <= max(_PADDING_TOKENS, buckets[-1][0] // 4):
            buckets.append([])
        buckets[-1].append(length)
    return [tuple(bucket) for bucket in buckets if any(bucket)]


def _completion_outputs(
    own: Sequence[Tensor], prompt: Sequence[Tensor], scale: float, lengths: Sequence[int]
) -> Tensor:
    """Each completion over its prompt's keys and its own: [1 N H D]; `own` are [N heads D].

    Trailing padding needs no mask: causality hides it from every real position. Query heads that
    share a key head are folded into the query axis, so that keys and values aren't repeated.
    """
    query, key, value = (_pad(x, lengths) for x in own)
    num_rows, num_heads, width, size = query.shape
    num_kv = key.shape[1]
    repeat = num_heads // num_kv
    keys, values = (
        torch.cat([shared.expand(num_rows, -1, -1, -1), x], dim=2)
        for shared, x in zip(prompt, (key, value), strict=True)
    )
    num_prompt = prompt[0].shape[2]
    mask = query.new_zeros(width, num_prompt + width)
    mask[:, num_prompt:] = query.new_full((width, width), -math.inf).triu(1)
    folded = query.reshape(num_rows, num_kv, repeat * width, size)
    output = F.scaled_dot_product_attention(
        folded, keys, values, attn_mask=mask.repeat(repeat, 1), scale=scale
    )
    # Values may be of another size than keys (multi-head latent attention).
    output = output.view(num_rows, num_heads, width, value.shape[-1]).transpose(1, 2)
    if len(set(lengths)) == 1:
        return output.reshape(1, num_rows * width, num_heads, value.shape[-1])
    return torch.cat([row[:length] for row, length in zip(output, lengths, strict=True)])[None]


def _pad(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """[N heads D] cut into rows of these lengths and padded: [B heads C D]."""
    if len(set(lengths)) == 1:
        rows = x.view(len(lengths), lengths[0], *x.shape[1:])
    else:
        rows = pad_sequence(list(x.split(list(lengths))), batch_first=True)
    return rows.transpose(1, 2)


def unpackable_because(config: PreTrainedConfig, max_tokens: int, supports_interface: bool) -> str | None:
    """Why a model's attention can't share prefixes; None where it can.

    `max_tokens` is the longest prompt with its completion: a sliding window at least that long hides
    nothing.
    """
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "it caps attention scores (attn_logit_softcapping)"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    windowed = getattr(config, "use_sliding_window", window is not None) and window is not None
    if ("sliding_attention" in kinds or (windowed and kinds == {"full_attention"})) and (
        window is None or window < max_tokens
    ):
        return f"it attends through a sliding window of {window} tokens, shorter than {max_tokens}"
    if others := kinds - {"full_attention", "sliding_attention"}:
        return f"it has layers of kind {', '.join(sorted(others))}"
    if not supports_interface:
        return "its attention can't be replaced through transformers' attention interface"
    return None


AttentionInterface.register(NAME, shared_prefix_attention)
# Ordinary calls get SDPA's masks; a packed call passes a 4-D placeholder, which transformers hands
# through untouched, so no square mask is built.
AttentionMaskInterface.register(NAME, sdpa_mask)
