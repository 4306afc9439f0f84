"""What a run's settings say that curves and tokens need."""

from muster.store import StoredConfig
from muster.view.curves import number_of

CLIPS = {
    "grpo": (0.2, 0.2),
    "dr_grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "bnpo": (0.2, 0.2),
    "reinforce_pp": (0.2, 0.2),
}
"""Clip range, low and high, of the recipes that clip token by token; a test compares it with theirs."""


def full_score(config: StoredConfig) -> float:
    """The score of a rollout whose rewards are all 1: the sum of the weights."""
    weights, use = config.get("reward", "weights"), config.get("reward", "use")
    if isinstance(weights, list) and all(isinstance(weight, int | float) for weight in weights):
        return float(sum(weight for weight in weights if weight > 0)) or 1.0
    return float(len(use)) if isinstance(use, list) and use else 1.0


def clip_range(config: StoredConfig) -> dict[str, float | None] | None:
    """The bounds of the ratio, `low` and `high` as distances from 1; None where no token is clipped."""
    chosen, recipe = config.get("algo", "objective"), str(config.get("algo", "recipe") or "grpo")
    low, high = CLIPS.get(recipe, (0.2, 0.2))
    if chosen is None:
        return {"low": low, "high": high, "cap": None} if recipe in CLIPS else None
    options = chosen if isinstance(chosen, dict) else {"use": chosen}
    if options.get("use") != "clip":
        return None
    return {
        "low": number_of(options.get("low", 0.2)) or 0.0,
        "high": number_of(options.get("high", 0.2)) or 0.0,
        "cap": number_of(options.get("cap")),
    }
