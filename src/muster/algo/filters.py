"""Which groups take part, and what a completion pays for being overlong.

Axes: P prompts, G rollouts of a prompt, B rows (one completion each).
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor


def has_signal(advantages: Float[Tensor, "P G"]) -> Bool[Tensor, " P"]:
    """Whether some rollout of the group was better than another.

    Advantages of groups whose rewards are all equal are exactly 0, so this needs no tolerance.
    """
    return (advantages != 0).any(dim=1)


def overlong_penalty(lengths: Int[Tensor, "*B"], *, limit: int, zone: int) -> Float[Tensor, "*B"]:
    """0 up to `zone` tokens before the limit, then falling evenly to -1 at the limit and beyond.

    DAPO's soft penalty (arXiv:2503.14476), added to the reward before advantages are formed.
    """
    return ((limit - zone - lengths) / zone).clamp(-1.0, 0.0)
