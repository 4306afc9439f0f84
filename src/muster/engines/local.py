"""Sampling in process, on the training weights themselves.

A prompt's keys and values are computed once per group and shared; finished rows leave the batch;
logprobs come from the same pass, at the same temperature.

Axes: R rows (one rollout each), L positions, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from muster.attention import DecodeCache, GroupSpan, Layout, PackedLayout, PrefillLayout
from muster.engines.base import Sampling
from muster.engines.sampler import Decodes, Rollouts
from muster.errors import EngineError
from muster.records import Completion, Prompt


@runtime_checkable
class Decodable(Protocol):
    """What the engine needs of a policy."""

    backbone: nn.Module

    @property
    def tokenizer(self) -> Decodes:
        """Finds stop strings."""
        ...

    @property
    def packs(self) -> bool:
        """Whether its attention can share prompts."""
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


def _ignore(done: int, total: int) -> None:
    """Progress that nobody asked for."""


class LocalEngine:
    """Samples with a policy in this process, at most `max_rows` rollouts at a time.

    Without `load_weights`, or where it was given the policy's own, it samples on whatever weights the
    policy has now. Others that were loaded are an "old policy": it samples on these until the next load.
    """

    def __init__(
        self, policy: Decodable, *, max_rows: int = 64, progress: Callable[[int, int], None] = _ignore
    ) -> None:
        self.policy = policy
        self.max_rows = max_rows
        self.progress = progress
        self.version = 0
        self._weights: dict[str, Tensor] | None = None

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """`group_size` completions for each prompt; equal prompts, keys and weights give equal tokens."""
        if empty := [number for number, prompt in enumerate(prompts) if not prompt.ids]:
            raise EngineError(
                f"prompt {empty[0]} has no token, so there is nothing to predict a first one from. Start raw "
                "prompts with the model's first special token."
            )
        jobs = [(number, index) for number in range(len(prompts)) for index in range(sampling.group_size)]
        completions: list[Completion] = []
        with torch.no_grad(), self.policy.using(self._weights):
            for start in range(0, len(jobs), self.max_rows):
                wave = jobs[start : start + self.max_rows]
                completions += self._wave(prompts, wave, sampling, (len(completions), len(jobs)))
        size = sampling.group_size
        return [completions[start : start + size] for start in range(0, len(completions), size)]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Samples with a copy of these weights from now on.

        The policy's own parameters are sampled on as they are: a copy would be a second model in memory.
        """
        given, own = dict(weights), dict(self.policy.trainable())
        is_own = all(tensor is own.get(name) for name, tensor in given.items())
        self._weights = None if is_own else {name: tensor.detach().clone() for name, tensor in given.items()}
        self.version = version

    def close(self) -> None:
        """Lets go of the copied weights."""
        self._weights = None

    def _wave(
        self,
        prompts: Sequence[Prompt],
        wave: list[tuple[int, int]],
        sampling: Sampling,
        done: tuple[int, int],
    ) -> list[Completion]:
        """Samples some rollouts side by side; `done` counts finished and all rollouts of the call."""
        rollouts = Rollouts([(prompts[n].key, index) for n, index in wave], sampling, self.policy.tokenizer)
        groups = [(n, len(list(members))) for n, members in groupby(wave, key=lambda job: job[0])]
        decoder_kind = SharedPrefixDecoder if self.policy.packs else PlainDecoder
        decoder = decoder_kind(
            self.policy, [prompts[n].ids for n, _ in groups], [c for _, c in groups], sampling
        )
        logits = decoder.prefill()
        steps_per_rollout = sampling.max_tokens
        for step in range(sampling.max_tokens):
            ids, going = rollouts.step(logits)
            finished = done[0] + len(wave) - len(rollouts.running)
            share = len(rollouts.running) * (step + 1)
            self.progress(finished * steps_per_rollout + share, done[1] * steps_per_rollout)
            if not going:
                break
            if len(going) < len(ids):
                rows = torch.tensor(going, device=ids.device)
                decoder.keep_rows(rows)
                ids = ids[rows]
            logits = decoder.step(ids)
        return rollouts.completions(self.version)


class SharedPrefixDecoder:
    """Decodes with each prompt's keys and values stored once per group."""

    def __init__(
        self, policy: Decodable, prompts: list[tuple[int, ...]], counts: list[int], sampling: Sampling
    ) -> None:
        self.policy = policy
        self.prompts = prompts
        lengths = [len(prompt) for prompt in prompts]
        group_of_row = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(counts))
        self.cache = DecodeCache(lengths, sampling.max_tokens, group_of_row.to(policy.device))
        self._prompt_lengths = torch.tensor(lengths, device=policy.device)

    def prefill(self) -> Tensor:
        """Logits [R V] of every row's first token; the prompts run once, as one packed row."""
        device = self.policy.device
        ids = torch.tensor([token for prompt in self.prompts for token in prompt], device=device)
        positions = torch.cat([torch.arange(len(prompt), device=device) for prompt in self.prompts])
        ends = self._prompt_lengths.cumsum(0)
        starts = (ends - self._prompt_lengths).tolist()
        spans = [
            GroupSpan(start, len(prompt), ()) for start, prompt in zip(starts, self.prompts, strict=True)
        ]
        layout = PrefillLayout(PackedLayout(tuple(spans)), self.cache)
        hidden = self.policy.hidden(ids[None], positions[None], layout)
        return self.policy.logits(hidden[0, ends - 1])[self.cache.group_of_row]

    def step(self, ids: Tensor) -> Tensor:
        """Logits [R V] after one more token per row."""
        positions = self._prompt_lengths[self.cache.group_of_row] + self.cache.length
        hidden = self.policy.hidden(ids[:, None], positions[:, None], self.cache)
        self.cache.length += 1
        return self.policy.logits(hidden[:, 0])

    def keep_rows(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        self.cache.keep_rows(rows)


class PlainDecoder:
    """Decodes with transformers' own cache, for models whose attention can't share prompts.

    Prompts are computed once per group, padded on the left, then repeated for every row.
    """

    def __init__(
        self, policy: Decodable, prompts: list[tuple[int, ...]], counts: list[int], sampling: Sampling
    ) -> None:
        self.policy = policy
        device = policy.device
        width = max(len(prompt) for prompt in prompts)
        self._ids = torch.zeros(len(prompts), width, dtype=torch.long, device=device)
        self._mask = torch.zeros_like(self._ids)
        for row, prompt in enumerate(prompts):
            self._ids[row, width - len(prompt) :] = torch.tensor(prompt, device=device)
            self._mask[row, width - len(prompt) :] = 1
        self._positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        self._row_of = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(counts)).to(device)
        self._cache: object = None

    def prefill(self) -> Tensor:
        """Logits [R V] of every row's first token."""
        hidden = self._forward(self._ids, self._positions)
        logits = self.policy.logits(hidden[:, -1])[self._row_of]
        self._cache.reorder_cache(self._row_of)  # type: ignore[attr-defined]
        self._mask = self._mask[self._row_of]
        self._positions = self._positions[self._row_of, -1:]
        return logits

    def step(self, ids: Tensor) -> Tensor:
        """Logits [R V] after one more token per row."""
        self._positions = self._positions + 1
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(ids), 1)], dim=1)
        return self.policy.logits(self._forward(ids[:, None], self._positions)[:, -1])

    def keep_rows(self, rows: Tensor) -> None:
        """Drops all rows but these."""
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
