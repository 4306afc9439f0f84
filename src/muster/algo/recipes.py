"""Recipes: the GRPO family as six small choices each, and the one line they all share.

Axes: B rows (one completion each), T completion positions.

    per_token = objective * correction * gate + kl_coef * kl - entropy_coef * entropy
    loss      = sum of per_token * weights, where the mask is True
"""

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from muster.algo.advantages import Advantage, batch_whitened, center, leave_one_out, zscore
from muster.algo.gates import EVERY_TOKEN, Gate
from muster.algo.kl import KL, k2
from muster.algo.objectives import Objective, cispo, clip, gspo, reinforce, sapo, vespo
from muster.algo.ratios import Correction, no_correction, truncate
from muster.algo.tokens import Tokens, Totals, silence
from muster.algo.weights import Weights, by_limit, by_sequence, by_sum, by_token


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A named choice of functions. The fields' defaults are GRPO."""

    name: str
    advantage: Advantage = zscore
    """Rewards of the step's groups to advantages."""
    objective: Objective = clip
    """Tokens to a policy loss per token."""
    correction: Correction = truncate
    """Weight for the gap between sampler and learner; 1 where they agree."""
    gate: Gate = EVERY_TOKEN
    """Which tokens the policy term reads."""
    kl: KL = k2
    """Estimator of the KL term; in force where the run's `kl_coef` is above 0."""
    weights: Weights = by_sequence
    """What each token counts."""
    resample: int = 0
    """Rounds in which groups without signal are drawn again; 0 is off."""
    truncated: Literal["score", "mask", "penalize"] = "score"
    """A completion cut at its limit: scored as any, out of the loss, or given the soft penalty."""


GRPO = Recipe(name="grpo")
DR_GRPO = Recipe(name="dr_grpo", advantage=center, weights=by_limit)
DAPO = Recipe(
    name="dapo",
    objective=partial(clip, low=0.2, high=0.28),
    weights=by_token,
    resample=3,
    truncated="penalize",
)
BNPO = Recipe(name="bnpo", objective=partial(clip, low=0.2, high=0.2), weights=by_token)
GSPO = Recipe(name="gspo", objective=partial(gspo, low=3e-4, high=4e-4))
LUSPO = Recipe(name="luspo", objective=partial(gspo, low=2e-3, high=2.5e-3), weights=by_sum)
CISPO = Recipe(name="cispo", objective=partial(cispo, cap=5.0), weights=by_token)
SAPO = Recipe(name="sapo", objective=partial(sapo, tau_positive=1.0, tau_negative=1.05))
VESPO = Recipe(name="vespo", objective=vespo, correction=no_correction, weights=by_token)
RLOO = Recipe(name="rloo", advantage=leave_one_out, objective=reinforce, weights=by_sum)
REINFORCE_PP = Recipe(name="reinforce_pp", advantage=batch_whitened, weights=by_token)

RECIPES = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            GRPO,
            DR_GRPO,
            DAPO,
            BNPO,
            GSPO,
            LUSPO,
            CISPO,
            SAPO,
            VESPO,
            RLOO,
            REINFORCE_PP,
        )
    }
)


def per_token_loss(
    tokens: Tokens,
    recipe: Recipe,
    *,
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
    gate_threshold: float = 0.0,
) -> Float[Tensor, "B T"]:
    """The loss of each token before weights; noise where the mask is False.

    Correction and gate act on the policy term alone: the KL term holds for every token.
    `gate_threshold` is what the recipe's gate found for the update, if it asked for any.
    """
    policy = recipe.objective(tokens) * recipe.correction(tokens)
    per_token = torch.where(recipe.gate.keep(tokens, gate_threshold), policy, 0.0)
    if kl_coef:
        assert tokens.ref_logprobs is not None, "a KL term needs the reference's logprobs"
        per_token = per_token + kl_coef * recipe.kl(tokens.logprobs, tokens.ref_logprobs, tokens.old_logprobs)
    if entropy_coef:
        per_token = per_token - entropy_coef * tokens.entropy
    return per_token


def loss(
    tokens: Tokens,
    recipe: Recipe,
    totals: Totals,
    *,
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
    gate_threshold: float = 0.0,
) -> Float[Tensor, ""]:
    """A micro-batch's part of the update's loss: such parts add up to the whole, and so do gradients."""
    per_token = per_token_loss(
        silence(tokens),
        recipe,
        kl_coef=kl_coef,
        entropy_coef=entropy_coef,
        gate_threshold=gate_threshold,
    )
    return torch.where(tokens.mask, per_token, 0.0).mul(recipe.weights(tokens.mask, totals)).sum()
