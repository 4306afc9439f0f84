"""Decoding: logits of the next token of every row, while rows join and leave.

Axes: R rows (one rollout each), L positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from muster.attention import GroupSpan, Layout, PackedLayout, PrefillLayout
from muster.cache import DecodeCache, without
from muster.engines.base import Sampling
from muster.engines.sampler import Decodes
from muster.errors import EngineError


@runtime_checkable
class Tokenizes(Decodes, Protocol):
    """The part of a tokenizer that the engine needs."""

    def __call__(self, text: str, /, *, add_special_tokens: bool) -> Mapping[str, Sequence[int]]:
        """The text's ids, under `input_ids`."""
        ...


@runtime_checkable
class Decodable(Protocol):
    """What the engine needs of a policy."""

    backbone: nn.Module
    head: nn.Module

    @property
    def tokenizer(self) -> Tokenizes:
        """Finds stop strings."""
        ...

    @property
    def packs(self) -> bool:
        """Whether its attention can share prompts."""
        ...

    @property
    def autocast(self) -> torch.dtype | None:
        """The lower precision that it computes in; None for that of the weights."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    def hidden(self, ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Final hidden states under a shared-prefix layout."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """The head on hidden states."""
        ...

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that training changes, by name."""
        ...

    def using(self, weights: Mapping[str, Tensor] | None) -> AbstractContextManager[None]:
        """Runs on other trainable weights."""
        ...

    def whole(self) -> AbstractContextManager[None]:
        """All weights are here for as long as this lasts; where ranks divide them, every rank enters."""
        ...


@runtime_checkable
class Decoder(Protocol):
    """Holds the rows of a call; a prompt is known by its number."""

    num_seats: int
    """Rows that it takes side by side."""
    joins: bool
    """Whether rows may join others that are under way."""

    def join(self, groups: Sequence[int]) -> Tensor:
        """Seats rows that continue these prompts, behind the others: logits [R V] of their first tokens."""
        ...

    def step(self, ids: Tensor) -> Tensor:
        """Logits [R V] after one more token per row."""
        ...

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Lets rows go; where each that is left was before, in their new order."""
        ...


Forward = Callable[[Tensor, Tensor, PrefillLayout | DecodeCache], Tensor]
"""Ids and positions, [1 N] or [N 1], and a layout to final hidden states [N E]."""


def _by_modules(policy: Decodable) -> Forward:
    return lambda ids, positions, layout: policy.hidden(ids, positions, layout).flatten(0, 1)


class SharedPrefixDecoder:
    """Decodes with each prompt's keys and values stored once for its group.

    A prompt is computed when the first of its rows joins, and let go with the last.
    """

    joins = True

    def __init__(
        self,
        policy: Decodable,
        prompts: Sequence[tuple[int, ...]],
        sampling: Sampling,
        num_seats: int,
        forward: Forward | None = None,
    ) -> None:
        self.policy = policy
        self.prompts = prompts
        self.num_seats = num_seats
        self._forward = forward or _by_modules(policy)
        self.cache = DecodeCache(num_seats, sampling.max_tokens, policy.device)
        self._known: list[int] = []
        """Numbers of the prompts in the cache, in its order."""
        self._first: dict[int, Tensor] = {}
        """Logits [V] of the first token, while rows of the prompt are still to join."""
        self._to_join = dict.fromkeys(range(len(prompts)), sampling.group_size)

    def join(self, groups: Sequence[int]) -> Tensor:
        """Seats rows that continue these prompts, behind the others: logits [R V] of their first tokens."""
        self._forget_finished()
        if fresh := [group for group in dict.fromkeys(groups) if group not in self._known]:
            self._known += fresh
            self._first |= dict(zip(fresh, self._prefill(fresh), strict=True))
        self.cache.join([self._known.index(group) for group in groups])
        logits = torch.stack([self._first[group] for group in groups])
        for group in groups:
            self._to_join[group] -= 1
            if not self._to_join[group]:
                del self._first[group]
        return logits

    def _prefill(self, groups: Sequence[int]) -> Tensor:
        """Logits [G V] after each of these prompts, which run once, as one packed row."""
        prompts = [self.prompts[group] for group in groups]
        device = self.policy.device
        ids = torch.tensor([token for prompt in prompts for token in prompt], device=device)
        positions = torch.cat([torch.arange(len(prompt), device=device) for prompt in prompts])
        ends = list(accumulate(map(len, prompts)))
        spans = [GroupSpan(end - len(prompt), len(prompt), ()) for end, prompt in zip(ends, prompts)]
        self.cache.expect([len(prompt) for prompt in prompts])
        layout = PrefillLayout(PackedLayout(tuple(spans)), self.cache)
        hidden = self._forward(ids[None], positions[None], layout)
        return self.policy.logits(hidden[torch.tensor(ends, device=device) - 1])

    def _forget_finished(self) -> None:
        """Lets go of the prompts that no row continues or will."""
        used = set(self.cache.groups)
        kept = [n for n, group in enumerate(self._known) if n in used or self._to_join[group]]
        if len(kept) < len(self._known):
            self.cache.forget(kept)
            self._known = [self._known[number] for number in kept]

    def step(self, ids: Tensor) -> Tensor:
        """Logits [R V] after one more token per row."""
        hidden = self._forward(ids[:, None], self.cache.positions()[:, None], self.cache)
        self.cache.advance()
        return self.policy.logits(hidden)

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Lets rows go; where each that is left was before, in their new order."""
        order = self.cache.leave(rows)
        self._forget_finished()
        return order


class PlainDecoder:
    """Decodes with transformers' own cache, for models whose attention can't share prompts.

    Prompts are computed once per group, padded on the left, then repeated for every row. All rows are
    of one age: new ones join once the others are done.
    """

    joins = False

    def __init__(
        self, policy: Decodable, prompts: Sequence[tuple[int, ...]], sampling: Sampling, num_seats: int
    ) -> None:
        self.policy = policy
        self.prompts = prompts
        self.num_seats = num_seats
        self._cache: object = None
        self._mask = self._positions = torch.empty(0)

    def join(self, groups: Sequence[int]) -> Tensor:
        """Seats rows that continue these prompts: logits [R V] of their first tokens."""
        numbers = list(dict.fromkeys(groups))
        prompts = [self.prompts[number] for number in numbers]
        device, width = self.policy.device, max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long, device=device)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt, device=device)
            mask[row, width - len(prompt) :] = 1
        self._cache, self._mask = None, mask
        self._positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = self.policy.logits(self._forward(ids, self._positions)[:, -1])
        rows = torch.tensor([numbers.index(group) for group in groups], device=device)
        self._pick(rows)
        self._positions = self._positions[:, -1:]
        return logits[rows]

    def step(self, ids: Tensor) -> Tensor:
        """Logits [R V] after one more token per row."""
        self._positions = self._positions + 1
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(ids), 1)], dim=1)
        return self.policy.logits(self._forward(ids[:, None], self._positions)[:, -1])

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Lets rows go; where each that is left was before, in their new order."""
        order = without(len(self._mask), rows)
        if order:
            self._pick(torch.tensor(order, device=self.policy.device))
        return order

    def _pick(self, rows: Tensor) -> None:
        self._cache.reorder_cache(rows)  # type: ignore[attr-defined]
        self._mask, self._positions = self._mask[rows], self._positions[rows]

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        output = self.policy.backbone(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            cache=self._cache,
            use_cache=True,
        )
        self._cache = getattr(output, "cache", None)
        if self._cache is None:
            raise EngineError(
                f"{type(self.policy.backbone).__name__} keeps no cache of keys and values, so the local "
                "engine can't sample from it. Train another model, or sample with another engine."
            )
        return output.last_hidden_state
