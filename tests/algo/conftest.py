from collections.abc import Callable, Sequence

import pytest
import torch

from muster.algo.tokens import Tokens, Totals

Rows = Sequence[Sequence[float]]


def tokens_of(
    logprobs: Rows | torch.Tensor,
    *,
    advantages: Sequence[float] | None = None,
    old: Rows | torch.Tensor | None = None,
    sampler: Rows | torch.Tensor | None = None,
    ref: Rows | torch.Tensor | None = None,
    entropy: Rows | torch.Tensor | None = None,
    mask: Sequence[Sequence[int]] | torch.Tensor | None = None,
) -> Tokens:
    """Tokens in float64; what isn't given is on-policy, without entropy, with advantage 1, unmasked."""

    def tensor(rows: Rows | torch.Tensor) -> torch.Tensor:
        return rows if isinstance(rows, torch.Tensor) else torch.tensor(rows, dtype=torch.float64)

    now = tensor(logprobs)
    before = now.detach().clone() if old is None else tensor(old)
    return Tokens(
        logprobs=now,
        old_logprobs=before,
        sampler_logprobs=before if sampler is None else tensor(sampler),
        ref_logprobs=None if ref is None else tensor(ref),
        entropy=torch.zeros_like(now) if entropy is None else tensor(entropy),
        advantages=torch.tensor([1.0] * len(now) if advantages is None else advantages, dtype=torch.float64),
        mask=torch.ones_like(now, dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool(),
    )


def totals_of(mask: torch.Tensor, limit: int = 8) -> Totals:
    """Totals of an update that consists of these rows."""
    return Totals(tokens=int(mask.sum()), sequences=len(mask), limit=limit)


@pytest.fixture
def make_tokens() -> Callable[..., Tokens]:
    return tokens_of


@pytest.fixture
def make_totals() -> Callable[..., Totals]:
    return totals_of
