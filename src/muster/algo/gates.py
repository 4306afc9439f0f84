"""Gates: which tokens the policy term reads. A gate never alters the totals.

Axes: B rows (one completion each), T completion positions, N tokens of an update.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from muster.algo.ratios import sequence_mean
from muster.algo.tokens import Tokens
from muster.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """Which tokens take part in the policy term.

    What depends on the whole update is one number, found before the first backward; so the
    gate doesn't change with the micro-batches it is asked about.
    """

    keep: Callable[[Tokens, float], Bool[Tensor, "B T"]]
    """From tokens and the threshold to True where a token takes part."""
    threshold: Callable[[Float[Tensor, " N"]], float] | None = None
    """From the entropies of all tokens of the update that count to the threshold.

    None where the gate needs none; `keep` is then given 0.
    """


EVERY_TOKEN = Gate(keep=lambda tokens, _: torch.ones_like(tokens.mask))


def no_gate() -> Gate:
    """Every token takes part."""
    return EVERY_TOKEN


def top_entropy(*, share: float = 0.2) -> Gate:
    """Only the `share` of the update's tokens with the highest entropy takes part.

    The tokens at which the policy hesitates decide where a text goes (arXiv:2506.01939).
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share is {share}, but 'top_entropy' keeps a share of tokens above 0 and up to 1.")

    def threshold(entropy: Float[Tensor, " N"]) -> float:
        num_kept = round(share * entropy.numel()) or 1
        return entropy.topk(num_kept).values[-1].item() if entropy.numel() else 0.0

    return Gate(keep=lambda tokens, lowest: tokens.entropy.detach() >= lowest, threshold=threshold)


def off_policy_sequence(*, max_drift: float = 0.5) -> Gate:
    """A completion worse than its group leaves once the policy has moved too far away from it.

    DeepSeek-V3.2 (arXiv:2512.02556): where the advantage is negative and the mean over tokens of
    sampler minus policy logprob exceeds `max_drift`. Pushing such a text down further teaches
    little and destabilizes; a good one is always worth learning from. Drift counts from the
    sampler, so that both updates and the gap between sampler and learner are seen.
    """

    def keep(tokens: Tokens, _: float) -> Bool[Tensor, "B T"]:
        drift = sequence_mean((tokens.sampler_logprobs - tokens.logprobs).detach(), tokens.mask)
        is_kept = (tokens.advantages[:, None] >= 0) | (drift <= max_drift)
        return is_kept.expand_as(tokens.mask)

    return Gate(keep=keep)


GATES = MappingProxyType(
    {"none": no_gate, "top_entropy": top_entropy, "off_policy_sequence": off_policy_sequence}
)
