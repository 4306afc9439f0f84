"""What each token counts in the loss: mask and totals in, weights out.

Axes: B rows (one completion each), T completion positions.

Totals are those of the whole update, so the weights of a completion don't depend on which
micro-batch it is in. The loss is the sum of per-token losses times these weights.
"""

from collections.abc import Callable
from types import MappingProxyType

from jaxtyping import Bool, Float
from torch import Tensor

from muster.algo.tokens import Totals

Weights = Callable[[Bool[Tensor, "B T"], Totals], Float[Tensor, "B T"]]


def by_sequence(mask: Bool[Tensor, "B T"], totals: Totals) -> Float[Tensor, "B T"]:
    """Every completion counts the same, however long: 1 / (completions * its tokens).

    GRPO (arXiv:2402.03300). A token of a short completion counts more than one of a long one.
    """
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return mask / (lengths * max(totals.sequences, 1))


def by_token(mask: Bool[Tensor, "B T"], totals: Totals) -> Float[Tensor, "B T"]:
    """Every token of the update counts the same: 1 / tokens. DAPO (arXiv:2503.14476)."""
    return mask / max(totals.tokens, 1)


def by_limit(mask: Bool[Tensor, "B T"], totals: Totals) -> Float[Tensor, "B T"]:
    """Every token counts the same in every update: 1 / (completions * limit).

    Dr. GRPO (arXiv:2503.20783): a constant divisor, so that length has no say at all.
    """
    return mask / max(totals.sequences * totals.limit, 1)


def by_sum(mask: Bool[Tensor, "B T"], totals: Totals) -> Float[Tensor, "B T"]:
    """A completion counts as the sum of its tokens: 1 / completions.

    RLOO (arXiv:2402.14740), where a completion is one action, and LUSPO (arXiv:2602.05261), where
    the sequence loss is multiplied by its length. The loss and its gradient grow with the length
    of the completions.
    """
    return mask / max(totals.sequences, 1)


WEIGHTS = MappingProxyType(
    {"by_sequence": by_sequence, "by_token": by_token, "by_limit": by_limit, "by_sum": by_sum}
)
