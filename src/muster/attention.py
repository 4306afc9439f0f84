"""Shared-prefix attention: a prompt's keys and values are computed once for its whole group.

One attention function serves both sides of a run. In the update, a packed row holds each prompt
followed by its completions (`PackedLayout`): every completion sees its prompt and itself, no square
mask over the row is ever built. In sampling, one new token per rollout attends to the prompt's keys,
stored once per group, and to its own (`DecodeCache`).

transformers hands both through its attention interface: the layout travels as an extra keyword of
the model's call, so it is still there when gradient checkpointing recomputes a layer. Without a
layout the function is transformers' own SDPA, so ordinary calls of the model keep working.

Axes: B completions of a group, L packed positions, C longest completion, P prompt, H query heads,
K key-value heads, D head size, R rollouts in a decoding step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

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


@dataclass(eq=False)
class DecodeCache:
    """Keys and values of a decoding batch: each prompt's once per group, each rollout's own.

    Rows (rollouts) of one group needn't be adjacent; `slots` says which row sits where in the
    group-wise product over the prompts' keys.
    """

    prompt_lengths: Sequence[int]
    max_tokens: int
    group_of_row: Tensor
    """[R] which prompt each row continues."""
    length: int = 0
    """Tokens decoded so far; the same for every row."""
    prompt_keys: list[Tensor] = field(default_factory=list)
    """Per layer [G K P D], padded at the end."""
    prompt_values: list[Tensor] = field(default_factory=list)
    own_keys: list[Tensor] = field(default_factory=list)
    """Per layer [R K max_tokens D], filled up to `length`."""
    own_values: list[Tensor] = field(default_factory=list)
    slots: Tensor = field(init=False)
    """[G S] row of each group's slot; padded with row 0."""
    slot_of_row: Tensor = field(init=False)
    """[R] flat index into [G S]."""
    prompt_mask: Tensor = field(init=False)
    """[G 1 1 P] 0 where the prompt has a token, -inf at padding."""

    def __post_init__(self) -> None:
        """Places the rows in their groups' slots."""
        device = self.group_of_row.device
        lengths = torch.tensor(self.prompt_lengths, device=device)
        padding = torch.arange(int(lengths.max()), device=device)[None] >= lengths[:, None]
        self.prompt_mask = torch.zeros(padding.shape, device=device).masked_fill(padding, -math.inf)
        self.prompt_mask = self.prompt_mask[:, None, None]
        self._place_rows()

    def _place_rows(self) -> None:
        num_groups = len(self.prompt_lengths)
        order = torch.argsort(self.group_of_row, stable=True)
        counts = torch.bincount(self.group_of_row, minlength=num_groups)
        width = max(1, int(counts.max()))
        first = torch.cumsum(counts, 0) - counts
        rank = torch.arange(len(order), device=order.device) - first[self.group_of_row[order]]
        flat = self.group_of_row[order] * width + rank
        self.slots = torch.zeros(num_groups * width, dtype=torch.long, device=order.device)
        self.slots[flat] = order
        self.slots = self.slots.view(num_groups, width)
        self.slot_of_row = torch.empty_like(order)
        self.slot_of_row[order] = flat

    def store_prompts(self, keys: Tensor, values: Tensor) -> None:
        """Keeps a layer's prompt keys and values, [1 K L D] with the prompts one after the other."""
        for stored, packed in ((self.prompt_keys, keys), (self.prompt_values, values)):
            parts = packed[0].transpose(0, 1).split(list(self.prompt_lengths))
            stored.append(pad_sequence(list(parts), batch_first=True).transpose(1, 2).contiguous())
        for own, packed in ((self.own_keys, keys), (self.own_values, values)):
            _, num_heads, _, size = packed.shape
            own.append(packed.new_empty(len(self.group_of_row), num_heads, self.max_tokens, size))

    def keep_rows(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        self.group_of_row = self.group_of_row[rows]
        for buffers in (self.own_keys, self.own_values):
            for layer, buffer in enumerate(buffers):
                kept = buffer.new_empty((len(rows), *buffer.shape[1:]))
                kept[:, :, : self.length] = buffer[:, :, : self.length].index_select(0, rows)
                buffers[layer] = kept
        self._place_rows()


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
        return _decode(query, key, value, scale, cast(int, module.layer_idx), layout), None
    if isinstance(layout, PrefillLayout):
        layout.cache.store_prompts(key, value)
        layout = layout.packed
    outputs = [out for span in layout.groups for out in _group_outputs(query, key, value, scale, span)]
    return torch.cat(outputs, dim=1), None


def _group_outputs(query: Tensor, key: Tensor, value: Tensor, scale: float, span: GroupSpan) -> list[Tensor]:
    """The prompt's output [1 P H D] and, one after the other, the completions' [1 N H D]."""
    split = span.start + span.prompt
    prompt = [x[:, :, span.start : split] for x in (query, key, value)]
    output = F.scaled_dot_product_attention(
        prompt[0],
        prompt[1],
        prompt[2],
        is_causal=True,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    outputs = [output.transpose(1, 2)]
    start = split
    for lengths in length_buckets(span.completions):
        end = start + sum(lengths)
        own = [x[0, :, start:end].transpose(0, 1) for x in (query, key, value)]
        outputs.append(_completion_outputs(own, prompt[1:], scale, lengths))
        start = end
    return outputs


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


def _decode(
    query: Tensor, key: Tensor, value: Tensor, scale: float, layer: int, cache: DecodeCache
) -> Tensor:
    """One new token per row over its prompt and its own tokens: [R 1 H D]."""
    num_rows, num_heads, _, size = query.shape
    num_kv = key.shape[1]
    repeat = num_heads // num_kv
    cache.own_keys[layer][:, :, cache.length] = key[:, :, 0]
    cache.own_values[layer][:, :, cache.length] = value[:, :, 0]
    own_keys = cache.own_keys[layer][:, :, : cache.length + 1]
    own_values = cache.own_values[layer][:, :, : cache.length + 1]
    folded = (query * scale).view(num_rows, num_kv, repeat, size)

    own_scores = folded @ own_keys.transpose(-1, -2)
    prompt_scores = _rows_from_slots(
        _slots_from_rows(folded, cache) @ cache.prompt_keys[layer].transpose(-1, -2) + cache.prompt_mask,
        cache,
        repeat,
    )
    num_prompt = prompt_scores.shape[-1]
    scores = torch.cat([prompt_scores, own_scores], dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    from_prompt = _rows_from_slots(
        _slots_from_rows(weights[..., :num_prompt], cache) @ cache.prompt_values[layer], cache, repeat
    )
    output = from_prompt + weights[..., num_prompt:] @ own_values
    return output.reshape(num_rows, 1, num_heads, value.shape[-1])


def _slots_from_rows(x: Tensor, cache: DecodeCache) -> Tensor:
    """[R K repeat X] gathered group-wise: [G K S*repeat X]."""
    num_groups, width = cache.slots.shape
    _, num_kv, repeat, size = x.shape
    gathered = x.index_select(0, cache.slots.view(-1)).view(num_groups, width, num_kv, repeat, size)
    return gathered.transpose(1, 2).reshape(num_groups, num_kv, width * repeat, size)


def _rows_from_slots(x: Tensor, cache: DecodeCache, repeat: int) -> Tensor:
    """[G K S*repeat X] back to rows: [R K repeat X]."""
    num_groups, width = cache.slots.shape
    num_kv, size = x.shape[1], x.shape[-1]
    spread = x.view(num_groups, num_kv, width, repeat, size).transpose(1, 2)
    return spread.reshape(num_groups * width, num_kv, repeat, size).index_select(0, cache.slot_of_row)


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
