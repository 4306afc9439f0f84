"""Groups to tensors: the frozen batch of an update, its micro-batches, and their packed rows.

A batch has one row per completion, whatever the packing. Packing puts a prompt and its completions
into one sequence; the results come back as [B T].

Axes: B rows (one completion each), T completion positions, L packed positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from muster.algo.tokens import Totals
from muster.attention import GroupSpan, PackedLayout
from muster.records import Completion


class Row(NamedTuple):
    """One completion on its way into a batch."""

    group: int
    """Index of its prompt among the batch's prompts."""
    completion: Completion
    advantage: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Completions and all that the loss needs of them; rows of one prompt are adjacent."""

    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each prompt."""
    group: Int[Tensor, " B"]
    """Index into `prompts`, never falling from row to row."""
    ids: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    """Tokens of each completion, those that don't count included."""
    mask: Bool[Tensor, "B T"]
    """True where a token is the policy's own and counts."""
    advantages: Float[Tensor, " B"]
    sampler_logprobs: Float[Tensor, "B T"]
    old_logprobs: Float[Tensor, "B T"] | None = None
    """None where the weights being updated are those that sampled."""
    ref_logprobs: Float[Tensor, "B T"] | None = None
    kept: tuple[tuple[tuple[int, ...], ...] | None, ...] | None = None
    """Per row the sets that top-k, top-p and min-p left; None where sampling was not truncated."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.ids)

    def select(self, rows: Sequence[int]) -> "Batch":
        """These rows, in this order, as a batch of their own."""
        index = torch.as_tensor(rows, dtype=torch.long)
        picked = {
            item.name: value[index]
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        kept = None if self.kept is None else tuple(self.kept[row] for row in rows)
        return replace(self, kept=kept, **picked)


def collate(prompts: Sequence[tuple[int, ...]], rows: Sequence[Row]) -> Batch:
    """The rows as one batch, ordered by prompt; masks and logprobs come from the completions."""
    ordered = sorted(rows, key=lambda row: row.group)
    width = max((len(row.completion.ids) for row in ordered), default=0)
    shape = (len(ordered), width)
    ids = torch.zeros(shape, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.bool)
    sampler_logprobs = torch.zeros(shape)
    for index, row in enumerate(ordered):
        length = len(row.completion.ids)
        ids[index, :length] = torch.tensor(row.completion.ids)
        emitted = row.completion.emitted
        mask[index, :length] = True if emitted is None else torch.tensor(emitted)
        sampler_logprobs[index, :length] = torch.tensor(row.completion.sampler_logprobs)
    kept = tuple(row.completion.kept for row in ordered)
    return Batch(
        prompts=tuple(prompts),
        group=torch.tensor([row.group for row in ordered], dtype=torch.long),
        ids=ids,
        lengths=torch.tensor([len(row.completion.ids) for row in ordered], dtype=torch.long),
        mask=mask,
        advantages=torch.tensor([row.advantage for row in ordered], dtype=torch.float32),
        sampler_logprobs=sampler_logprobs,
        kept=kept if any(sets is not None for sets in kept) else None,
    )


def count_totals(batch: Batch, num_idle: int, idle_tokens: int, limit: int) -> Totals:
    """Totals of an update: its own rows, and those of groups without signal that were left out of it.

    A rollout of a group without signal adds nothing to the numerator, yet the formulas divide by it.
    """
    return Totals(
        tokens=int(batch.mask.sum()) + idle_tokens,
        sequences=int(batch.mask.any(dim=1).sum()) + num_idle,
        limit=limit,
    )


class Packed(NamedTuple):
    """One sequence [1 L] with every prompt of some rows once, each followed by its completions."""

    ids: Int[Tensor, "1 L"]
    positions: Int[Tensor, "1 L"]
    """Restart after the prompt for every completion."""
    layout: PackedLayout
    predictors: Int[Tensor, "B T"]
    """Packed position whose logits predict each completion token; 0 at padding."""


def pack(batch: Batch) -> Packed:
    """Every prompt once, then its completions without their last token, which predicts nothing.

    A group's completions rise in length, so that attention can compute neighbours side by side.
    """
    ids: list[Tensor] = []
    positions: list[Tensor] = []
    spans: list[GroupSpan] = []
    predictors = torch.zeros_like(batch.ids)
    lengths = batch.lengths.tolist()
    start = 0
    for group, members in groupby(range(len(batch)), key=batch.group.tolist().__getitem__):
        rows = sorted(members, key=lengths.__getitem__)
        prompt = batch.prompts[group]
        span = GroupSpan(start, len(prompt), tuple(max(lengths[row] - 1, 0) for row in rows))
        ids.append(torch.tensor(prompt))
        positions.append(torch.arange(len(prompt)))
        offset = start + len(prompt)
        for row, length in zip(rows, span.completions, strict=True):
            ids.append(batch.ids[row, :length])
            positions.append(torch.arange(length) + len(prompt))
            predictors[row, 0] = start + len(prompt) - 1
            predictors[row, 1 : length + 1] = torch.arange(length) + offset
            offset += length
        spans.append(span)
        start = span.end
    return Packed(torch.cat(ids)[None], torch.cat(positions)[None], PackedLayout(tuple(spans)), predictors)


class Padded(NamedTuple):
    """One row per completion, its prompt in front, padded at the end."""

    ids: Int[Tensor, "B L"]
    attention_mask: Int[Tensor, "B L"]
    predictors: Int[Tensor, "B T"]
    """Flat index into [B L] of the position that predicts each completion token; 0 at padding."""


def pad(batch: Batch) -> Padded:
    """Plain rows, for models whose attention can't share prefixes."""
    lengths = batch.lengths.tolist()
    prompts = [batch.prompts[group] for group in batch.group.tolist()]
    width = max(len(prompt) + length for prompt, length in zip(prompts, lengths, strict=True))
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    attention_mask = torch.zeros_like(ids)
    predictors = torch.zeros_like(batch.ids)
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        end = len(prompt) + length
        ids[row, : len(prompt)] = torch.tensor(prompt)
        ids[row, len(prompt) : end] = batch.ids[row, :length]
        attention_mask[row, :end] = 1
        predictors[row, :length] = torch.arange(length) + len(prompt) - 1 + row * width
    return Padded(ids, attention_mask, predictors)


def micro_batches(
    batch: Batch, budget_tokens: int, packs: bool, enough_tokens: int | None = None
) -> Iterator[list[int]]:
    """Row numbers of each micro-batch, in order; each stays under the budget if one row does.

    What a row costs: packed, its completion, and its prompt where it is the first of its group in
    the micro-batch; plain, its prompt and completion, padded to the longest of the micro-batch.

    Beyond `enough_tokens` a micro-batch takes no further group, though the budget may allow it; packed
    groups are cut by the budget alone, since each part computes the prompt anew.
    """
    chosen: list[int] = []
    used = longest = 0
    group_of_row, lengths = batch.group.tolist(), batch.lengths.tolist()
    enough = budget_tokens if enough_tokens is None else enough_tokens
    completions = torch.zeros(len(batch.prompts), dtype=torch.long).index_add(0, batch.group, batch.lengths)
    for row, group in enumerate(group_of_row):
        num_prompt = len(batch.prompts[group])
        whole = num_prompt + lengths[row]
        is_first = not chosen or group_of_row[chosen[-1]] != group
        if packs:
            cost = used + (whole if is_first else lengths[row])
            joins = not is_first or used + num_prompt + int(completions[group]) <= enough
        else:
            cost = max(longest, whole) * (len(chosen) + 1)
            joins = cost <= enough
        if chosen and (cost > budget_tokens or (enough < budget_tokens and not joins)):
            yield chosen
            chosen, longest, cost = [], 0, whole
        chosen.append(row)
        used, longest = cost, max(longest, whole)
    if chosen:
        yield chosen


def rows_of_share(batch: Batch, number: int, count: int) -> list[int]:
    """The rows of one of so many shares: neighbours, and about as many tokens as any other."""
    lengths = batch.lengths.double()
    middles = lengths.cumsum(0) - lengths / 2
    places = (middles / lengths.sum().clamp(min=1) * count).long().clamp(max=count - 1)
    return (places == number).nonzero()[:, 0].tolist()


def head_batches(batch: Batch, max_tokens: int) -> Iterator[list[int]]:
    """Row numbers in order, in runs of no more tokens that count than this, or of one row."""
    chosen: list[int] = []
    used = 0
    for row, count in enumerate(batch.mask.sum(dim=1).tolist()):
        if chosen and used + count > max_tokens:
            yield chosen
            chosen, used = [], 0
        chosen.append(row)
        used += count
    if chosen:
        yield chosen
