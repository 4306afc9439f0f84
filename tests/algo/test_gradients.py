"""Every objective, KL, correction and bonus against finite differences in float64.

What a function detaches is held at its base value here, so this states once more, in plain
Python and one token at a time, what each formula is.
"""

from functools import partial
from math import exp
from statistics import fmean

import pytest
import torch

from muster.algo.kl import KLS
from muster.algo.objectives import OBJECTIVES
from muster.algo.ratios import mask_outside, no_correction, truncate
from muster.algo.recipes import Recipe, loss
from muster.algo.weights import WEIGHTS

GENERATOR = torch.Generator().manual_seed(7)


def drawn(scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(3, 4, generator=GENERATOR, dtype=torch.float64)


_NOW, _DRIFT, _GAP = drawn() - 2.0, drawn(0.35), drawn(0.6)
NOW, OLD, SAMPLER = _NOW.tolist(), (_NOW + _DRIFT).tolist(), (_NOW + _DRIFT + _GAP).tolist()
REF, ENTROPY = (drawn() - 2.0).tolist(), drawn().abs().tolist()
ADVANTAGES = [1.3, -0.7, -1.1]
LENGTHS = [4, 2, 3]
MASK = [[t < length for t in range(4)] for length in LENGTHS]
KL_COEF, ENTROPY_COEF, LIMIT = 0.3, 0.05, 5


def gamma(w, advantage):
    k, rate = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
    return w**k * exp(rate * (1 - w))


def clipped(ratio, advantage, low, high):
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def soft(ratio, advantage):
    tau = 1.0 if advantage > 0 else 1.05
    return -4 / tau / (1 + exp(-tau * (ratio - 1))) * advantage


# From the row's logprobs now, at the base, of old policy and sampler; then position and advantage.
POLICY = {
    "reinforce": lambda x, base, old, sampler, t, a: -a * x[t],
    "clip": lambda x, base, old, sampler, t, a: clipped(exp(x[t] - old[t]), a, 0.2, 0.2),
    "gspo": lambda x, base, old, sampler, t, a: clipped(exp(fmean(x) - fmean(old)), a, 3e-4, 4e-4),
    "cispo": lambda x, base, old, sampler, t, a: -min(exp(base[t] - old[t]), 5.0) * a * x[t],
    "sapo": lambda x, base, old, sampler, t, a: soft(exp(x[t] - old[t]), a),
    "vespo": lambda x, base, old, sampler, t, a: -gamma(exp(sum(base) - sum(sampler)), a) * a * x[t],
}
KL = {
    "none": lambda d: 0.0,
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: exp(-d) - 1 + d,
}
CORRECTION = {
    "none": (no_correction, lambda gaps, t: 1.0),
    "truncate": (truncate, lambda gaps, t: min(exp(gaps[t]), 2.0)),
    "mask": (
        partial(mask_outside, level="sequence_mean"),
        lambda gaps, t: exp(fmean(gaps)) * (0.5 <= exp(fmean(gaps)) <= 2.0),
    ),
    "sequence": (partial(truncate, level="sequence", cap=3.0), lambda gaps, t: min(exp(sum(gaps)), 3.0)),
}
WEIGHT = {
    "by_sequence": lambda length: 1 / (length * 3),
    "by_token": lambda length: 1 / sum(LENGTHS),
    "by_limit": lambda length: 1 / (3 * LIMIT),
    "by_sum": lambda length: 1 / 3,
}


def expected_loss(now, objective, kl, ratio, correction, weights):
    total = 0.0
    for i, (length, advantage) in enumerate(zip(LENGTHS, ADVANTAGES, strict=True)):
        x, base, old, sampler = (rows[i][:length] for rows in (now, NOW, OLD, SAMPLER))
        gaps = [o - s for o, s in zip(old, sampler, strict=True)]
        for t in range(length):
            policy = POLICY[objective](x, base, old, sampler, t, advantage)
            front = {"none": 1.0, "detached": exp(base[t] - old[t]), "differentiable": exp(x[t] - old[t])}
            penalty = front[ratio] * KL[kl](x[t] - REF[i][t])
            token = policy * CORRECTION[correction][1](gaps, t) + KL_COEF * penalty
            total += WEIGHT[weights](length) * (token - ENTROPY_COEF * ENTROPY[i][t])
    return total


def finite_differences(function, rows, step=1e-6):
    def shifted(i, t, by):
        return [[x + by * (j == i and u == t) for u, x in enumerate(row)] for j, row in enumerate(rows)]

    return [
        [(function(shifted(i, t, step)) - function(shifted(i, t, -step))) / (2 * step) for t in range(4)]
        for i in range(3)
    ]


def check(make_tokens, make_totals, objective, kl, ratio, correction, weights):
    now = torch.tensor(NOW, dtype=torch.float64, requires_grad=True)
    entropy = torch.tensor(ENTROPY, dtype=torch.float64, requires_grad=True)
    tokens = make_tokens(
        now, old=OLD, sampler=SAMPLER, ref=REF, entropy=entropy, advantages=ADVANTAGES, mask=MASK
    )
    recipe = Recipe(
        name="checked",
        objective=OBJECTIVES[objective],
        kl=KLS[kl] if kl == "none" else partial(KLS[kl], ratio=ratio),
        correction=CORRECTION[correction][0],
        weights=WEIGHTS[weights],
    )
    totals = make_totals(tokens.mask, limit=LIMIT)
    value = loss(tokens, recipe, totals, kl_coef=KL_COEF, entropy_coef=ENTROPY_COEF)
    gradient, of_entropy = torch.autograd.grad(value, [now, entropy])

    expected = partial(
        expected_loss, objective=objective, kl=kl, ratio=ratio, correction=correction, weights=weights
    )
    assert value.item() == pytest.approx(expected(NOW), abs=1e-6)
    numeric = torch.tensor(finite_differences(expected, NOW), dtype=torch.float64)
    torch.testing.assert_close(gradient, numeric, atol=1e-6, rtol=1e-6)
    of_bonus = [[-ENTROPY_COEF * WEIGHT[weights](n) * (t < n) for t in range(4)] for n in LENGTHS]
    torch.testing.assert_close(of_entropy, torch.tensor(of_bonus, dtype=torch.float64), atol=1e-8, rtol=0)


@pytest.mark.parametrize("objective", POLICY)
@pytest.mark.parametrize("correction", CORRECTION)
def test_gradients_agree_with_finite_differences(make_tokens, make_totals, objective, correction):
    for kl, ratio in [
        ("none", "none"),
        *[(kl, ratio) for kl in ("k1", "k2", "k3") for ratio in ("none", "detached", "differentiable")],
    ]:
        check(make_tokens, make_totals, objective, kl, ratio, correction, "by_sequence")


@pytest.mark.parametrize("objective", POLICY)
@pytest.mark.parametrize("weights", WEIGHT)
def test_gradients_agree_under_all_weights(make_tokens, make_totals, objective, weights):
    check(make_tokens, make_totals, objective, "k2", "none", "truncate", weights)


def test_every_choice_there_is_was_checked():
    assert POLICY.keys() == OBJECTIVES.keys()
    assert KL.keys() == KLS.keys()
    assert WEIGHT.keys() == WEIGHTS.keys()
