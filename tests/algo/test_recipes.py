import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from muster.algo.kl import k2, k3
from muster.algo.objectives import reinforce
from muster.algo.recipes import DAPO, GRPO, RECIPES, Recipe, loss, per_token_loss
from muster.algo.tokens import Tokens, Totals
from muster.algo.weights import by_token

ON_POLICY_REINFORCE = Recipe(name="plain", objective=reinforce, weights=by_token)


def test_the_recipes_are_those_the_documentation_names():
    assert sorted(RECIPES) == [
        "bnpo",
        "cispo",
        "dapo",
        "dr_grpo",
        "grpo",
        "gspo",
        "luspo",
        "reinforce_pp",
        "rloo",
        "sapo",
        "vespo",
    ]
    assert all(name == recipe.name for name, recipe in RECIPES.items())


@pytest.mark.parametrize(
    ("name", "value"),
    [("grpo", 0.0), ("dapo", 0.333333), ("bnpo", 0.333333), ("dr_grpo", 0.125), ("gspo", 0.0)],
)
def test_the_loss_of_a_first_step(make_tokens, name, value):
    mask = [[1, 1, 0, 0], [1, 1, 1, 1]]
    tokens = make_tokens(torch.full((2, 4), -1.0), advantages=[1.0, -1.0], mask=mask)
    totals = Totals(tokens=6, sequences=2, limit=8)
    assert loss(tokens, RECIPES[name], totals).item() == pytest.approx(value, abs=1e-6)


def test_the_kl_term_is_added_per_token_before_the_mean(make_tokens):  # B19
    # Policy losses [1, 1, 0-pad], k2 of [0.5, 0.5, 9-pad]: mean over the two tokens that count.
    tokens = make_tokens([[-1.0, -1.0, 0.0]], ref=[[0.0, 0.0, 4.2]], mask=[[1, 1, 0]])
    totals = Totals(tokens=2, sequences=1, limit=3)
    assert loss(tokens, ON_POLICY_REINFORCE, totals, kl_coef=0.1).item() == pytest.approx(1.05)


def test_the_kl_term_moves_the_policy_without_any_advantage(make_tokens):  # B22
    now = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    tokens = make_tokens(now, ref=[[-1.5, -1.0]], advantages=[0.0])
    value = loss(tokens, GRPO, Totals(tokens=2, sequences=1, limit=2), kl_coef=0.1)
    (gradient,) = torch.autograd.grad(value, now)
    assert gradient[0].tolist() == pytest.approx([0.1 * 0.5 / 2, 0.1 * -1.0 / 2])


def test_the_entropy_bonus_raises_entropy(make_tokens):
    entropy = torch.tensor([[0.5, 1.5]], dtype=torch.float64, requires_grad=True)
    tokens = make_tokens([[0.0, 0.0]], entropy=entropy, advantages=[0.0])
    value = loss(tokens, GRPO, Totals(tokens=2, sequences=1, limit=2), entropy_coef=0.01)
    assert value.item() == pytest.approx(-0.01)
    (gradient,) = torch.autograd.grad(value, entropy)
    assert gradient[0].tolist() == pytest.approx([-0.005, -0.005])


def test_a_kl_term_without_reference_is_our_mistake(make_tokens):
    tokens = make_tokens([[0.0]])
    with pytest.raises(AssertionError, match="reference"):
        per_token_loss(tokens, GRPO, kl_coef=0.1)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("noise", [math.nan, math.inf, -math.inf])
def test_noise_outside_the_mask_reaches_neither_loss_nor_gradient(make_tokens, recipe, noise):
    def value_and_gradients(filler):
        now = torch.tensor([[-1.0, filler], [filler, filler]], dtype=torch.float64, requires_grad=True)
        entropy = torch.tensor([[0.5, filler], [filler, filler]], dtype=torch.float64, requires_grad=True)
        other = torch.tensor([[-1.1, filler], [filler, filler]], dtype=torch.float64)
        mask = [[1, 0], [0, 0]]
        tokens = make_tokens(now, old=other, sampler=other, ref=other, entropy=entropy, mask=mask)
        totals = Totals(tokens=1, sequences=1, limit=2)
        value = loss(tokens, recipe, totals, kl_coef=0.1, entropy_coef=0.1)
        return [value.detach(), *torch.autograd.grad(value, [now, entropy])]

    for noisy, clean in zip(value_and_gradients(noise), value_and_gradients(0.0), strict=True):
        assert torch.equal(noisy, clean)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_batch_without_tokens_has_no_loss_and_no_gradient(make_tokens, recipe):  # B12
    now = torch.zeros(2, 3, requires_grad=True)
    tokens = make_tokens(now, mask=torch.zeros(2, 3))
    value = loss(tokens, recipe, Totals(tokens=0, sequences=0, limit=3))
    assert value.item() == 0
    assert torch.autograd.grad(value, now)[0].abs().max() == 0


LENGTHS = [1, 2, 3, 6, 4, 2, 5, 1]


def linear_update(make_tokens, recipe, num_parts, kl_coef=0.1):
    """The step of a linear policy under SGD with rate 1, its gradient accumulated over some parts."""
    generator = torch.Generator().manual_seed(3)
    features, old, ref = (torch.randn(8, 6, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.arange(6)[None] < torch.tensor(LENGTHS)[:, None]
    advantages = torch.randn(8, generator=generator, dtype=torch.float64)
    totals = Totals(tokens=sum(LENGTHS), sequences=8, limit=6)
    parameters = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    for rows in torch.arange(8).chunk(num_parts):
        now = features[rows] @ parameters
        tokens = Tokens(
            logprobs=now,
            old_logprobs=(now + 0.1 * old[rows, :, 0]).detach(),
            sampler_logprobs=(now + 0.2 * old[rows, :, 0]).detach(),
            ref_logprobs=ref[rows, :, 0],
            entropy=now.square(),
            advantages=advantages[rows],
            mask=mask[rows],
        )
        loss(tokens, recipe, totals, kl_coef=kl_coef, entropy_coef=0.01).backward()
    assert parameters.grad is not None
    return -parameters.grad


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_an_update_does_not_depend_on_how_it_is_accumulated(make_tokens, recipe):  # B9, B10, B18
    whole = linear_update(make_tokens, recipe, 1)
    assert whole.abs().min() > 0
    for num_parts in (2, 4, 8):
        torch.testing.assert_close(linear_update(make_tokens, recipe, num_parts), whole, atol=1e-12, rtol=0)


def test_token_means_are_over_the_whole_update(make_tokens):  # B9, B18
    totals = Totals(tokens=4, sequences=2, limit=3)
    now = [torch.tensor([row], dtype=torch.float64, requires_grad=True) for row in ([1.0], [2.0, 3.0, 6.0])]
    parts = [loss(make_tokens(row, advantages=[-1.0]), ON_POLICY_REINFORCE, totals) for row in now]
    assert sum(part.item() for part in parts) == 3.0


def test_an_update_counts_its_own_tokens_only(make_tokens):  # B11
    # Two updates from one batch of rollouts: each has the gradient of an equal batch sampled for it.
    rows = torch.tensor([[-1.0, -2.0], [-3.0, -4.0], [-1.0, -2.0], [-3.0, -4.0]], dtype=torch.float64)
    own = Totals(tokens=4, sequences=2, limit=2)
    first, second = (loss(make_tokens(rows[i : i + 2]), ON_POLICY_REINFORCE, own) for i in (0, 2))
    assert first.item() == second.item() == 2.5


def test_dapo_is_grpo_but_for_what_it_changes():
    assert (
        replace(
            GRPO, name="dapo", objective=DAPO.objective, weights=by_token, resample=3, truncated="penalize"
        )
        == DAPO
    )


@pytest.mark.parametrize("kl", [k2, partial(k3, ratio="differentiable")])
def test_with_equal_policies_the_kl_term_is_zero(make_tokens, kl):
    now = torch.tensor([[-1.0, -2.0]])
    tokens = make_tokens(now, ref=now.clone(), advantages=[0.0])
    recipe = replace(GRPO, kl=kl)
    assert loss(tokens, recipe, Totals(tokens=2, sequences=1, limit=2), kl_coef=1.0) == 0
