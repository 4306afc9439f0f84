"""Drawing tokens: random streams, truncated distributions and stops, one decoding step at a time.

Axes: R rows (one rollout each), V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from muster.devices import moved
from muster.engines.base import Sampling
from muster.errors import EngineError
from muster.records import Completion

BLOCK = 128
"""Tokens whose probabilities are summed at once; it divides most vocabularies."""


@runtime_checkable
class Decodes(Protocol):
    """The part of a tokenizer that finds stop strings."""

    def decode(self, token_ids: list[int], /) -> str | list[str]:
        """The text of some ids, special tokens included."""
        ...


class Draw(NamedTuple):
    """One sampled token per row."""

    ids: Int[Tensor, " R"]
    logprobs: Float[Tensor, " R"]
    """Under the distribution that was sampled: at the temperature, over the kept set."""
    kept: Bool[Tensor, "R V"] | None


def uniforms(key: Sequence[int], index: int, count: int) -> np.ndarray:
    """The first `count` draws of a rollout's own stream, in [0, 1).

    The stream is named by prompt key and index in the group, so a rollout doesn't depend on what
    else is in the batch. Each part of the name counts with its lowest 64 bits.
    """
    return np.random.Generator(np.random.Philox(_stream((*key, index)))).random(count)


def seed_of(key: Sequence[int]) -> int:
    """A number below 2^62 that names a prompt's stream, for samplers that take one: index i adds i to it."""
    return int(_stream(key).generate_state(1, np.uint64)[0]) >> 2


def _stream(parts: Sequence[int]) -> np.random.SeedSequence:
    words = [part % 2**32 for part in parts]
    if any(high := [(part >> 32) % 2**32 for part in parts]):
        words += high
    return np.random.SeedSequence(words)


def draw(logits: Float[Tensor, "R V"], uniform: Float[Tensor, " R"], sampling: Sampling) -> Draw:
    """One token per row by inverting the cumulative distribution at a uniform number.

    Sums run in blocks of tokens. A block's share is good to float32's relative precision; within the
    block the sum runs in float64 and is scaled to that share, so that a token rarer than float32 could
    add to its neighbours is still drawn as often as it should be. Temperature 0 takes the likeliest
    token, whose logprob is then 0.
    """
    if not logits.amax(dim=1).isfinite().all():
        raise EngineError(
            "the model's logits are NaN or infinite, so no token can be drawn. Its weights are broken, or "
            'they overflow in bfloat16: set model.dtype = "float32".'
        )
    if sampling.temperature == 0:
        ids = logits.argmax(dim=1)
        return Draw(ids, torch.zeros(len(ids), device=logits.device), None)
    scaled = logits if sampling.temperature == 1 else logits / sampling.temperature
    kept = keep(scaled, sampling)
    if kept is not None:
        scaled = scaled.masked_fill(~kept, -torch.inf)
    probs = scaled.softmax(dim=1)
    ids = _invert(probs, uniform)
    return Draw(ids, probs.gather(1, ids[:, None])[:, 0].log(), kept)


def _invert(probs: Float[Tensor, "R V"], uniform: Float[Tensor, " R"]) -> Int[Tensor, " R"]:
    """The token at which each row's cumulative probability passes its uniform number."""
    blocks = F.pad(probs, (0, -probs.shape[1] % BLOCK)).view(len(probs), -1, BLOCK)
    cumulative = blocks.sum(dim=2).cumsum(dim=1, dtype=torch.float64)
    threshold = uniform[:, None] * cumulative[:, -1:]
    block = torch.searchsorted(cumulative, threshold, right=True)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]
    end, within = cumulative.gather(1, block), inside.cumsum(dim=1, dtype=torch.float64)
    start = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)), 0.0)
    # Rounding may put the number at the block's very end, which belongs to the next one.
    share = ((threshold - start) / (end - start)).clamp(max=1 - 2**-53)
    return (block * BLOCK + torch.searchsorted(within, share * within[:, -1:], right=True))[:, 0]


def keep(scaled: Float[Tensor, "R V"], sampling: Sampling) -> Bool[Tensor, "R V"] | None:
    """Which tokens top-k, then top-p, then min-p leave; None where all three are off.

    Each filter looks at what the one before it left. The likeliest token always stays.
    """
    if sampling.top_k <= 0 and sampling.top_p >= 1 and sampling.min_p <= 0:
        return None
    kept = torch.ones_like(scaled, dtype=torch.bool)
    if 0 < sampling.top_k < scaled.shape[1]:
        kept = torch.zeros_like(kept).scatter(1, scaled.topk(sampling.top_k, dim=1).indices, True)
    if sampling.top_p < 1:
        probs, order = scaled.masked_fill(~kept, -torch.inf).softmax(dim=1).sort(dim=1, descending=True)
        before = probs.cumsum(dim=1) - probs
        kept &= torch.zeros_like(kept).scatter(1, order, before < sampling.top_p)
    if sampling.min_p > 0:
        probs = scaled.masked_fill(~kept, -torch.inf).softmax(dim=1)
        kept &= probs >= sampling.min_p * probs.amax(dim=1, keepdim=True)
    return kept


class Rollouts:
    """The growing token lists of a call's rollouts."""

    def __init__(
        self, keys: Sequence[tuple[Sequence[int], int]], sampling: Sampling, tokenizer: Decodes
    ) -> None:
        self.sampling = sampling
        self.tokenizer = tokenizer
        self.ids: list[list[int]] = [[] for _ in keys]
        self.logprobs: list[list[float]] = [[] for _ in keys]
        self.kept: list[list[tuple[int, ...]]] = [[] for _ in keys]
        self.stopped = [False] * len(keys)
        self._uniforms = np.stack([uniforms(key, index, sampling.max_tokens) for key, index in keys])
        # A token holds at least one byte, so a stop string of n bytes lies within the last n tokens;
        # a few more keep the tokens that a tokenizer treats apart, those at the start, off it.
        self._tail = max((len(stop.encode()) for stop in sampling.stop_strings), default=0) + 8

    def step(self, logits: Float[Tensor, "R V"], running: Sequence[int]) -> Int[Tensor, " R"]:
        """Draws a token for each running rollout, in the order of the rows."""
        positions = [len(self.ids[rollout]) for rollout in running]
        uniform = moved(torch.from_numpy(self._uniforms[list(running), positions]), logits.device)
        drawn = draw(logits, uniform, self.sampling)
        values = zip(running, drawn.ids.tolist(), drawn.logprobs.tolist(), strict=True)
        for row, (rollout, token, logprob) in enumerate(values):
            self.ids[rollout].append(token)
            self.logprobs[rollout].append(logprob)
            if drawn.kept is not None:
                self.kept[rollout].append(tuple(drawn.kept[row].nonzero()[:, 0].tolist()))
            self.stopped[rollout] = self._stops(rollout)
        return drawn.ids

    def is_done(self, rollout: int) -> bool:
        """Stopped, or at its limit."""
        return self.stopped[rollout] or len(self.ids[rollout]) >= self.sampling.max_tokens

    def _stops(self, rollout: int) -> bool:
        if self.sampling.ignore_eos:
            return False
        ids = self.ids[rollout]
        if ids[-1] in self.sampling.stop_ids:
            return True
        if not self.sampling.stop_strings:
            return False
        tail = str(self.tokenizer.decode(ids[-self._tail :]))
        return any(stop in tail for stop in self.sampling.stop_strings)

    def completions(self, version: int) -> list[Completion]:
        """What was sampled, in the order of the keys."""
        return [
            Completion(
                ids=tuple(ids),
                sampler_logprobs=tuple(logprobs),
                finish_reason="stop" if stopped else "length",
                version=version,
                kept=tuple(kept) if kept else None,
            )
            for ids, logprobs, kept, stopped in zip(
                self.ids, self.logprobs, self.kept, self.stopped, strict=True
            )
        ]
