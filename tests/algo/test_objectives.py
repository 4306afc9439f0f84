from functools import partial

import pytest
import torch

from muster.algo.objectives import OBJECTIVES, cispo, clip, gspo, reinforce, sapo, vespo
from muster.algo.recipes import LUSPO, Recipe, loss

DAPO_CLIP = partial(clip, low=0.2, high=0.28)


def value_and_gradient(make_tokens, objective, ratio, advantage, logprob=-0.3):
    now = torch.tensor([[logprob]], dtype=torch.float64, requires_grad=True)
    old = now.detach() - torch.tensor(ratio, dtype=torch.float64).log()
    value = objective(make_tokens(now, old=old, advantages=[advantage])).sum()
    (gradient,) = torch.autograd.grad(value, now)
    return value.item(), gradient.item()


@pytest.mark.parametrize(
    ("ratio", "up", "down", "dual"),
    [
        (0.50, (-0.50, -0.50), (0.80, 0), (0.80, 0)),
        (0.79, (-0.79, -0.79), (0.80, 0), (0.80, 0)),
        (1.00, (-1.00, -1.00), (1.00, 1.00), (1.00, 1.00)),
        (1.20, (-1.20, -1.20), (1.20, 1.20), (1.20, 1.20)),
        (1.25, (-1.25, -1.25), (1.25, 1.25), (1.25, 1.25)),
        (1.30, (-1.28, 0), (1.30, 1.30), (1.30, 1.30)),
        (5.00, (-1.28, 0), (5.00, 5.00), (3.00, 0)),
    ],
)
def test_clip_stops_a_token_that_moved_far_enough(make_tokens, ratio, up, down, dual):
    assert value_and_gradient(make_tokens, DAPO_CLIP, ratio, 1.0) == pytest.approx(up)
    assert value_and_gradient(make_tokens, DAPO_CLIP, ratio, -1.0) == pytest.approx(down)
    capped = partial(DAPO_CLIP, cap=3.0)
    assert value_and_gradient(make_tokens, capped, ratio, -1.0) == pytest.approx(dual)
    assert value_and_gradient(make_tokens, capped, ratio, 1.0) == pytest.approx(up)


def test_clip_higher_is_what_lets_a_ratio_of_1_25_learn(make_tokens):
    assert value_and_gradient(make_tokens, clip, 1.25, 1.0) == pytest.approx((-1.20, 0))


def test_gspo_uses_the_geometric_mean_of_the_ratios(make_tokens, make_totals):
    now = torch.tensor([[0.1, -0.2, 0.3]], dtype=torch.float64, requires_grad=True)
    tokens = make_tokens(now, old=torch.zeros_like(now))
    unclipped = partial(gspo, low=1.0, high=9.0)
    assert unclipped(tokens)[0].tolist() == pytest.approx([-1.068939] * 3, abs=1e-6)
    value = loss(tokens, Recipe(name="gspo", objective=unclipped), make_totals(tokens.mask))
    (gradient,) = torch.autograd.grad(value, now)
    assert gradient[0].tolist() == pytest.approx([-0.356313] * 3, abs=1e-6)


def test_gspo_does_not_grow_with_length_and_clips_close_to_one(make_tokens):
    tokens = make_tokens(torch.full((1, 100), 0.01), old=torch.zeros(1, 100))
    assert gspo(tokens, low=1.0, high=9.0)[0, 0].item() == pytest.approx(-1.010050, abs=1e-6)
    assert gspo(tokens)[0, 0].item() == pytest.approx(-1.0004, abs=1e-6)
    down = make_tokens(torch.full((1, 100), -0.01), old=torch.zeros(1, 100), advantages=[-1.0])
    assert gspo(down)[0, 0].item() == pytest.approx(0.9997, abs=1e-6)


def test_luspo_is_gspo_times_the_length(make_tokens, make_totals):
    now = torch.tensor([[0.001, -0.002, 0.003], [0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    tokens = make_tokens(now, old=torch.zeros_like(now), mask=[[1, 1, 1], [1, 0, 0]], advantages=[1.0, -2.0])
    value = loss(tokens, LUSPO, make_totals(tokens.mask))
    ratio = 1.0006668889  # exp(0.002 / 3)
    assert value.item() == pytest.approx((-ratio * 3 + 2 * 1) / 2, abs=1e-6)
    (gradient,) = torch.autograd.grad(value, now)
    assert gradient[0].tolist() == pytest.approx([-ratio / 2] * 3, abs=1e-6)


def test_cispo_bounds_the_weight_and_keeps_the_gradient(make_tokens):
    assert value_and_gradient(make_tokens, cispo, 0.5, -1.0) == pytest.approx((-0.15, 0.5))
    floored = partial(cispo, floor=0.8)
    assert value_and_gradient(make_tokens, floored, 0.5, -1.0) == pytest.approx((-0.24, 0.8))
    assert value_and_gradient(make_tokens, cispo, 7.0, 1.0) == pytest.approx((5 * 0.3, -5.0))


def test_sapo_has_clips_gradient_at_ratio_one_and_fades_away_from_it(make_tokens):
    # 4 sigmoid(0) = 2; sigmoid(1) = 0.731059, sigmoid'(1) = 0.196612.
    assert value_and_gradient(make_tokens, sapo, 1.0, 1.0) == pytest.approx((-2.0, -1.0))
    assert value_and_gradient(make_tokens, sapo, 1.0, -1.0) == pytest.approx((2 / 1.05, 1.0))
    value, gradient = value_and_gradient(make_tokens, sapo, 2.0, 1.0)
    assert value == pytest.approx(-4 * 0.731059, abs=1e-5)
    assert gradient == pytest.approx(-4 * 0.196612 * 2, abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "kernel"),
    [
        (1.0, 1.0, 1.0),
        (1.0, -1.0, 1.0),
        (0.5, 1.0, 1.120422),  # 0.5^2 e^(3 * 0.5)
        (2.0, 1.0, 0.199148),  # 2^2 e^(-3)
        (0.5, -1.0, 0.339785),  # 0.5^3 e^(2 * 0.5)
        (2.0, -1.0, 1.082682),  # 2^3 e^(-2)
    ],
)
def test_vespo_weighs_a_sequence_by_its_gamma_kernel(make_tokens, ratio, advantage, kernel):
    value, gradient = value_and_gradient(make_tokens, vespo, ratio, advantage)
    assert gradient == pytest.approx(-kernel * advantage, abs=1e-6)
    assert value == pytest.approx(0.3 * kernel * advantage, abs=1e-6)


def test_vespo_measures_the_whole_sequence_against_the_sampler(make_tokens):
    now = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    tokens = make_tokens(now, old=[[5.0, 5.0, 5.0]], sampler=[[0.1, -0.8, 9.0]], mask=[[1, 1, 0]])
    (gradient,) = torch.autograd.grad(vespo(tokens).sum(), now)
    # w = e^0.7 = 2.013753; kernel = w^2 e^(3 (1 - w)) = 0.193736
    assert gradient[0].tolist() == pytest.approx([-0.193736] * 3, abs=1e-5)


def test_reinforce_ignores_the_ratio(make_tokens):
    assert value_and_gradient(make_tokens, reinforce, 3.0, -2.0, logprob=-0.5) == pytest.approx((-1.0, 2.0))


@pytest.mark.parametrize("objective", OBJECTIVES.values())
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_on_policy_every_objective_has_the_policy_gradient(make_tokens, objective, advantage):
    now = torch.tensor([[-0.5, -1.0]], dtype=torch.float64, requires_grad=True)
    value = objective(make_tokens(now, advantages=[advantage])).sum()
    (gradient,) = torch.autograd.grad(value, now)
    assert gradient[0].tolist() == pytest.approx([-advantage] * 2)


@pytest.mark.parametrize("objective", OBJECTIVES.values())
@pytest.mark.parametrize("log_ratio", [-1e4, 1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_no_log_ratio_makes_an_objective_infinite(make_tokens, objective, log_ratio, advantage):
    now = torch.tensor([[log_ratio]], dtype=torch.float32, requires_grad=True)
    tokens = make_tokens(now, old=torch.zeros(1, 1), advantages=[advantage])
    value = objective(tokens).sum()
    (gradient,) = torch.autograd.grad(value, now)
    assert value.isfinite()
    assert gradient.isfinite().all()
