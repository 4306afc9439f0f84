"""Log-probabilities and entropies of sampled tokens, from hidden states, a chunk at a time.

Logits are formed only where a token is predicted, in chunks and in float32. What fits into one chunk
is kept for the backward pass, what takes several is computed again there: no tensor over rows, time
and vocabulary ever exists.

Axes: N predicted tokens, E hidden size, V vocabulary, X largest kept set.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

CHUNK_BYTES = 64 * 2**20
"""Size of one chunk of float32 logits: large enough for full speed, small beside the activations."""
_BLOCK_BYTES = 4 * 2**20
"""Logits that a processor's cache holds while they pass through several operations."""
_NOTHING = -1e4
"""Its exponential is 0 in every precision."""


class TokenStats(NamedTuple):
    """Per predicted token: its logprob and the entropy of the distribution it came from, in nats."""

    logprobs: Float[Tensor, " N"]
    entropy: Float[Tensor, " N"]
    is_likeliest: Bool[Tensor, " N"]
    """No other token has a larger logit."""


def chunk_tokens(num_vocab: int) -> int:
    """Predicted tokens whose logits are one chunk."""
    return max(1, CHUNK_BYTES // (4 * num_vocab))


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
    size = chunk_tokens(num_vocab)

    def chunk_stats(hidden: Tensor, targets: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        logits = head(hidden) if temperature == 1 else head(hidden) / temperature
        if kept is None:
            stats = cast(tuple[Tensor, Tensor, Tensor], _WholeStats.apply(logits, targets))
        else:
            stats = _stats_within(kept, logits, targets, entropy_gradient)
        logprobs, entropy, is_likeliest = stats
        return logprobs, entropy if entropy_gradient else entropy.detach(), is_likeliest

    pieces = []
    # At least one chunk, though an empty one, so that rows without a token that counts stay in the graph.
    for start in range(0, max(len(hidden), 1), size):
        part = slice(start, start + size)
        inputs = (hidden[part], targets[part], None if kept is None else kept[part])
        if torch.is_grad_enabled() and len(hidden) > size:
            pieces.append(checkpoint(chunk_stats, *inputs, use_reentrant=False, preserve_rng_state=False))
        else:
            pieces.append(chunk_stats(*inputs))
    return TokenStats(*(torch.cat(values) for values in zip(*pieces, strict=True)))


class _WholeStats(torch.autograd.Function):
    """Logprob of each row's target, entropy, and whether it is the likeliest, over the whole vocabulary.

    With p the row's softmax and H its entropy, the gradients are

        d logprob / d logit_j = [j = target] - p_j
        d H / d logit_j       = -p_j (log p_j + H)

    Autograd's own would pass over the logits, which are larger than any cache, a dozen times more.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normalizer, entropy = logits.new_empty(len(logits)), logits.new_empty(len(logits))
        picked = logits.gather(1, targets[:, None])[:, 0]
        is_likeliest = torch.empty_like(picked, dtype=torch.bool)
        for rows in _blocks(logits):
            top = logits[rows].amax(dim=1)
            is_likeliest[rows] = picked[rows] >= top
            centered = _floor(logits[rows] - top[:, None])
            probs = centered.exp()
            total = probs.sum(dim=1)
            normalizer[rows] = top + total.log()
            entropy[rows] = total.log() - probs.mul_(centered).sum(dim=1) / total
        ctx.save_for_backward(logits, targets, normalizer, entropy)
        # Where only the logprobs are used, no zeros stand in for the entropy's gradient.
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(is_likeliest)
        return picked - normalizer, entropy, is_likeliest

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator hides the names
        ctx: Any, of_logprob: Tensor | None, of_entropy: Tensor | None, _: object
    ) -> tuple[Tensor | None, None]:
        if of_logprob is None and of_entropy is None:
            return None, None
        logits, targets, normalizer, entropy = cast(tuple[Tensor, ...], ctx.saved_tensors)
        grad = torch.empty_like(logits)
        for rows in _blocks(logits):
            logs = torch.sub(logits[rows], normalizer[rows, None], out=grad[rows])
            factor = torch.zeros_like(logs[:, :1])
            if of_entropy is not None:
                factor = (_floor(logs) + entropy[rows, None]).mul_(-of_entropy[rows, None])
            if of_logprob is not None:
                factor = factor.sub_(of_logprob[rows, None])
            logs.exp_().mul_(factor)
        if of_logprob is not None:
            grad.scatter_add_(1, targets[:, None], of_logprob[:, None])
        return grad, None


def _blocks(logits: Tensor) -> Iterator[slice]:
    """Slices of the rows: of a size for the cache on a CPU, elsewhere all of them."""
    size = max(1, _BLOCK_BYTES // max(1, logits[:1].nbytes)) if logits.device.type == "cpu" else len(logits)
    return (slice(start, start + size) for start in range(0, len(logits), max(1, size)))


def _floor(logs: Tensor) -> Tensor:
    """In place, a finite number for what has no probability, since minus infinity times 0 is no number."""
    return logs.clamp_(min=_NOTHING)


def _stats_within(
    kept: Tensor, logits: Tensor, targets: Tensor, entropy_gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The same over the kept ids alone: so few that autograd's own gradients do."""
    picked = logits.gather(1, targets[:, None])[:, 0]
    logits = logits.gather(1, kept.clamp(min=0)).masked_fill(kept < 0, -torch.inf)
    normalizer = logits.logsumexp(dim=1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        probs = (logits - normalizer[:, None]).exp()
        entropy = normalizer - torch.where(probs > 0, probs * logits, 0.0).sum(dim=1)
    return picked - normalizer, entropy, picked >= logits.amax(dim=1)


def pad_kept(kept: Sequence[Sequence[int]]) -> Int[Tensor, "N X"]:
    """Kept sets of different sizes as one tensor, padded with -1."""
    width = max((len(ids) for ids in kept), default=0)
    rows = [[*ids, *[-1] * (width - len(ids))] for ids in kept]
    return torch.tensor(rows, dtype=torch.long).view(len(kept), width)
