"""Log-probabilities and entropies of sampled tokens, from hidden states, a chunk at a time.

Logits are formed only where a token is predicted, in chunks, in float32, and again in the backward
pass: no tensor over rows, time and vocabulary ever exists.

Axes: N predicted tokens, E hidden size, V vocabulary, X largest kept set.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_BYTES = 64 * 2**20
"""Size of one chunk of float32 logits: large enough for full speed, small beside the activations."""


class TokenStats(NamedTuple):
    """Per predicted token: its logprob and the entropy of the distribution it came from, in nats."""

    logprobs: Float[Tensor, " N"]
    entropy: Float[Tensor, " N"]


def token_stats(
    head: Callable[[Tensor], Tensor],
    hidden: Float[Tensor, "N E"],
    targets: Int[Tensor, " N"],
    *,
    temperature: float,
    num_vocab: int,
    kept: Int[Tensor, "N X"] | None = None,
    entropy_gradient: bool = False,
) -> TokenStats:
    """Stats of the target tokens, chunk by chunk; differentiable in `hidden` and the head's weights.

    `kept` holds the ids that truncated sampling left to choose from, padded with -1: the
    distribution is then the one over these. Entropy carries a gradient only where it is asked for.
    """
    size = max(1, CHUNK_BYTES // (4 * num_vocab))

    def chunk_stats(hidden: Tensor, targets: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        return _stats_of_logits(head(hidden) / temperature, targets, kept, entropy_gradient)

    pieces = []
    # At least one chunk, though an empty one, so that rows without a token that counts stay in the graph.
    for start in range(0, max(len(hidden), 1), size):
        part = slice(start, start + size)
        inputs = (hidden[part], targets[part], None if kept is None else kept[part])
        if torch.is_grad_enabled():
            pieces.append(checkpoint(chunk_stats, *inputs, use_reentrant=False, preserve_rng_state=False))
        else:
            pieces.append(chunk_stats(*inputs))
    logprobs, entropy = zip(*pieces, strict=True)
    return TokenStats(torch.cat(logprobs), torch.cat(entropy))


def _stats_of_logits(
    logits: Tensor, targets: Tensor, kept: Tensor | None, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    picked = logits.gather(1, targets[:, None])[:, 0]
    if kept is not None:
        logits = logits.gather(1, kept.clamp(min=0)).masked_fill(kept < 0, -torch.inf)
    normalizer = logits.logsumexp(dim=1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        probs = (logits - normalizer[:, None]).exp()
        entropy = normalizer - torch.where(probs > 0, probs * logits, 0.0).sum(dim=1)
    return picked - normalizer, entropy if entropy_gradient else entropy.detach()


def pad_kept(kept: Sequence[Sequence[int]]) -> Int[Tensor, "N X"]:
    """Kept sets of different sizes as one tensor, padded with -1."""
    width = max((len(ids) for ids in kept), default=0)
    rows = [[*ids, *[-1] * (width - len(ids))] for ids in kept]
    return torch.tensor(rows, dtype=torch.long).view(len(kept), width)
