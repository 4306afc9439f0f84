"""Keys and values of the rollouts that are being sampled: each prompt's once per group, each row's own.

Rows come and go one by one and may be of any age. They lie in the buffers without gaps: where one
leaves, the last takes its place, so that nothing but that row is ever copied.

Axes: R rows (one rollout each), G prompts, S rows of one prompt, K key-value heads, D head size,
P prompt positions, T a row's own positions.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

FIRST_TOKENS = 64
"""Own positions that buffers have room for at first; they double when a row reaches the end."""


class DecodeCache:
    """What one new token per row attends to."""

    def __init__(self, num_seats: int, max_tokens: int, device: torch.device) -> None:
        self.num_seats = num_seats
        """Rows that there is room for."""
        self.max_tokens = max_tokens
        self.device = device
        self.prompt_lengths: list[int] = []
        self.groups: list[int] = []
        """[R] which prompt each row continues."""
        self.lengths: list[int] = []
        """[R] tokens of each row so far."""
        self.num_stored = 0
        """Calls of `store_prompts` so far: one a layer where a model's attention is as it should be."""
        self._room = min(FIRST_TOKENS, max_tokens)
        self._prompts: dict[int, tuple[Tensor, Tensor]] = {}
        """By layer, keys and values [G K P D], padded at the end."""
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        """By layer, keys and values [seats K room D]; zero where nothing was written yet."""
        self._arrange()

    def expect(self, prompt_lengths: Sequence[int]) -> None:
        """Announces prompts whose keys and values the next pass will store."""
        self.prompt_lengths += prompt_lengths

    def store_prompts(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keeps a layer's keys and values of the announced prompts, [1 K L D] one after the other."""
        self.num_stored += 1
        earlier = self._prompts.get(layer)
        known = len(earlier[0]) if earlier is not None else 0
        lengths = self.prompt_lengths[known:]
        fresh = (_split(keys, lengths), _split(values, lengths))
        if earlier is not None:
            fresh = (_append(earlier[0], fresh[0]), _append(earlier[1], fresh[1]))
        self._prompts[layer] = fresh
        if layer not in self._own:
            self._own[layer] = (self._buffer(keys), self._buffer(values))

    def _buffer(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.num_seats, like.shape[1], self._room, like.shape[3])

    def join(self, groups: Sequence[int]) -> None:
        """Seats new rows after the last one, each continuing the prompt of that number."""
        self.groups += groups
        self.lengths += [0] * len(groups)
        self._arrange()

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Lets rows go; where each of the rows that are left was before, in their new order."""
        order = without(len(self.groups), rows)
        for row, before in enumerate(order):
            if row != before:
                length = self.lengths[before]
                for buffers in self._own.values():
                    for buffer in buffers:
                        buffer[row, :, :length] = buffer[before, :, :length]
        self.groups = [self.groups[row] for row in order]
        self.lengths = [self.lengths[row] for row in order]
        self._arrange()
        return order

    def forget(self, kept: Sequence[int]) -> None:
        """Drops all prompts but these, which are numbered anew in this order."""
        index = torch.tensor(kept, dtype=torch.long, device=self.device)
        self.prompt_lengths = [self.prompt_lengths[group] for group in kept]
        width = max(self.prompt_lengths, default=0)
        for layer, (keys, values) in self._prompts.items():
            self._prompts[layer] = (keys[:, :, :width][index], values[:, :, :width][index])
        self.groups = [kept.index(group) for group in self.groups]
        self._arrange()

    def advance(self) -> None:
        """Counts the token that every row has just been given."""
        self.lengths = [length + 1 for length in self.lengths]
        self.own_lengths += 1
        self._longest += 1

    def positions(self) -> Tensor:
        """[R] where in its sequence each row's next token stands."""
        return self._own_starts + self.own_lengths

    def _arrange(self) -> None:
        """Derives what attention needs from the lists; after every change of the rows."""

        def tensor(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=self.device)

        self.own_lengths = tensor(self.lengths)
        self._own_starts = tensor([self.prompt_lengths[group] for group in self.groups])
        self._longest = max(self.lengths, default=0)
        self._is_even = len(set(self.lengths)) <= 1
        self._places = _Places(self.groups, len(self.prompt_lengths), self.device)
        self._prompt_mask: Tensor | None = None
        if len(set(self.prompt_lengths)) > 1:
            width = max(self.prompt_lengths)
            hidden = torch.arange(width, device=self.device) >= tensor(self.prompt_lengths)[:, None]
            self._prompt_mask = hidden[:, None, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """One new token per row over its prompt and its own tokens: [R H D] from [R H D] and [R K D]."""
        own_keys, own_values = self._write(layer, key, value)
        prompt_keys, prompt_values = self._prompts[layer]
        places = self._places
        num_rows, num_kv, size = key.shape
        folded = (query * scale).view(num_rows, num_kv, -1, size)
        repeat, num_prompt = folded.shape[2], prompt_keys.shape[2]

        own = folded @ own_keys.transpose(-1, -2)
        if not self._is_even:
            late = torch.arange(own.shape[-1], device=self.device) > self.own_lengths[:, None]
            own = own.masked_fill(late[:, None, None], -math.inf)
        shared = places.by_group(folded) @ prompt_keys.transpose(-1, -2)
        if self._prompt_mask is not None:
            shared = shared.masked_fill(self._prompt_mask, -math.inf)
        scores = torch.cat([places.by_row(shared, repeat), own], dim=-1)
        precision = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(dim=-1, dtype=precision).to(value.dtype)
        output = weights[..., num_prompt:] @ own_values
        output += places.by_row(places.by_group(weights[..., :num_prompt]) @ prompt_values, repeat)
        # Values may be of another size than keys (multi-head latent attention).
        return output.view(num_rows, num_kv * repeat, value.shape[-1])

    def _write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Puts the new tokens' keys and values behind the rows' own; all of them, [R K T D]."""
        if self._longest >= self._room:
            self._grow()
        num_rows = len(key)
        both = self._own[layer]
        for buffer, new in zip(both, (key, value), strict=True):
            if self._is_even:
                buffer[:num_rows, :, self._longest] = new
            else:
                buffer[torch.arange(num_rows, device=self.device), :, self.own_lengths] = new
        return both[0][:num_rows, :, : self._longest + 1], both[1][:num_rows, :, : self._longest + 1]

    def _grow(self) -> None:
        self._room = min(2 * self._room, self.max_tokens)
        for layer, (keys, values) in self._own.items():
            grown = (self._buffer(keys), self._buffer(values))
            for new, old in zip(grown, (keys, values), strict=True):
                new[:, :, : old.shape[2]] = old
            self._own[layer] = grown


class _Places:
    """Which row sits where in the group-wise product over the prompts' keys, [G S], and back."""

    def __init__(self, groups: Sequence[int], num_groups: int, device: torch.device) -> None:
        self.num_groups = num_groups
        members: list[list[int]] = [[] for _ in range(num_groups)]
        for row, group in enumerate(groups):
            members[group].append(row)
        width = max(map(len, members), default=0)
        row_of = [row for rows in members for row in (*rows, *[0] * (width - len(rows)))]
        place_of = [0] * len(groups)
        for group, rows in enumerate(members):
            for rank, row in enumerate(rows):
                place_of[row] = group * width + rank
        # Groups of equal size, one after the other: then nothing needs to be gathered.
        self._are_sorted = row_of == list(range(len(groups)))
        self._row_of = torch.tensor(row_of, dtype=torch.long, device=device)
        self._place_of = torch.tensor(place_of, dtype=torch.long, device=device)

    def by_group(self, x: Tensor) -> Tensor:
        """[R K repeat X] gathered group-wise: [G K S*repeat X]."""
        _, num_kv, repeat, size = x.shape
        if not self._are_sorted:
            x = x.index_select(0, self._row_of)
        x = x.reshape(self.num_groups, -1, num_kv, repeat, size).transpose(1, 2)
        return x.reshape(self.num_groups, num_kv, -1, size)

    def by_row(self, x: Tensor, repeat: int) -> Tensor:
        """[G K S*repeat X] back to rows: [R K repeat X]."""
        _, num_kv, _, size = x.shape
        spread = x.view(self.num_groups, num_kv, -1, repeat, size).transpose(1, 2)
        spread = spread.reshape(-1, num_kv, repeat, size)
        return spread if self._are_sorted else spread.index_select(0, self._place_of)


def without(count: int, leaving: Sequence[int]) -> list[int]:
    """Rows 0 ... count - 1 without some: the last ones take the places of those that leave."""
    gone = set(leaving)
    left = count - len(gone)
    movers = iter([row for row in range(left, count) if row not in gone])
    return [next(movers) if row in gone else row for row in range(left)]


def _split(packed: Tensor, lengths: Sequence[int]) -> Tensor:
    """[1 K L D] cut into prompts: [G K P D], zero at the end of the shorter ones."""
    parts = packed[0].transpose(0, 1).split(list(lengths))
    return pad_sequence(list(parts), batch_first=True).transpose(1, 2).contiguous()


def _append(earlier: Tensor, fresh: Tensor) -> Tensor:
    """[G K P D] one after the other, the shorter padded."""
    width = max(earlier.shape[2], fresh.shape[2])
    padded = [torch.nn.functional.pad(x, (0, 0, 0, width - x.shape[2])) for x in (earlier, fresh)]
    return torch.cat(padded)
