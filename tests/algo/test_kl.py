from functools import partial

import pytest
import torch

from muster.algo.kl import KLS, exact, k1, k2, k3
from muster.algo.ratios import sequence_sum

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
TRUE_GRADIENT = [0.098938, -0.093885, -0.005053]


def value_and_gradient(estimator, d):
    logprobs = torch.tensor([[d]], dtype=torch.float64, requires_grad=True)
    value = estimator(logprobs, torch.zeros_like(logprobs)).sum()
    (gradient,) = torch.autograd.grad(value, logprobs)
    return value.item(), gradient.item()


@pytest.mark.parametrize(
    ("d", "of_k2", "of_k3", "gradient_of_k3"),
    [
        (-1.0, 0.500000, 0.718282, -1.718282),
        (-0.5, 0.125000, 0.148721, -0.648721),
        (-0.1, 0.005000, 0.005171, -0.105171),
        (0.0, 0.0, 0.0, 0.0),
        (0.1, 0.005000, 0.004837, 0.095163),
        (0.5, 0.125000, 0.106531, 0.393469),
        (1.0, 0.500000, 0.367879, 0.632121),
        (2.0, 2.000000, 1.135335, 0.864665),
    ],
)
def test_the_three_estimators(d, of_k2, of_k3, gradient_of_k3):
    assert value_and_gradient(k1, d) == pytest.approx((d, 1.0), abs=1e-6)
    assert value_and_gradient(k2, d) == pytest.approx((of_k2, d), abs=1e-6)
    assert value_and_gradient(k3, d) == pytest.approx((of_k3, gradient_of_k3), abs=1e-6)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
@pytest.mark.parametrize("d", [-100.0, 100.0])
def test_estimators_stay_finite_in_float32(estimator, d):
    logprobs = torch.tensor([[d]], requires_grad=True)
    value = estimator(logprobs, torch.zeros(1, 1)).sum()
    (gradient,) = torch.autograd.grad(value, logprobs)
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_exact_kl_over_the_vocabulary():
    assert exact(P.log(), Q.log()).item() == pytest.approx(0.025267, abs=1e-6)
    assert exact(Q.log(), P.log()).item() == pytest.approx(0.025815, abs=1e-6)
    one_impossible = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log()
    assert exact(one_impossible, Q.log()).item() == pytest.approx(0.223144, abs=1e-6)  # log(0.5 / 0.4)


def test_expected_values_under_the_policy():
    expected = {"none": 0.0, "k1": 0.025267, "k2": 0.024862, "k3": 0.025267}
    for name, estimator in KLS.items():
        mean = (P * estimator(P.log()[None], Q.log()[None])[0]).sum()
        assert mean.item() == pytest.approx(expected[name], abs=1e-6)


def expected_gradient(estimator, sampler=P):
    """Mean over samples of `sampler` of the estimator's gradient in the logits of P."""
    logits = P.log().clone().requires_grad_()
    logprobs = logits.log_softmax(0)[None]
    values = estimator(logprobs, Q.log()[None], sampler.log()[None])[0]
    (gradient,) = torch.autograd.grad((sampler * values).sum(), logits)
    return gradient.tolist()


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [
        (k1, [0, 0, 0]),
        (k2, TRUE_GRADIENT),
        (k3, [0.1, -0.1, 0]),
        (partial(k1, ratio="differentiable"), TRUE_GRADIENT),
        (partial(k3, ratio="differentiable"), TRUE_GRADIENT),
    ],
)
def test_what_each_estimator_optimizes_on_samples_of_the_policy(estimator, gradient):  # B23
    assert expected_gradient(estimator) == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize(
    "estimator",
    [
        partial(k2, ratio="detached"),
        partial(k1, ratio="differentiable"),
        partial(k3, ratio="differentiable"),
    ],
)
def test_the_ratio_in_front_makes_later_passes_right(estimator):
    old = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    assert expected_gradient(estimator, sampler=old) == pytest.approx(TRUE_GRADIENT, abs=1e-6)
    assert expected_gradient(k2, sampler=old) != pytest.approx(TRUE_GRADIENT, abs=1e-2)


def test_the_exact_gradient_is_the_true_one():
    logits = P.log().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(exact(logits.log_softmax(0), Q.log()), logits)
    assert gradient.tolist() == pytest.approx(TRUE_GRADIENT, abs=1e-6)


def test_k1_in_the_reward_has_the_true_gradient():
    logits = P.log().clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    estimate = k1(logprobs[:, None], Q.log()[:, None])
    cost = sequence_sum(estimate, torch.ones(3, 1, dtype=torch.bool)).squeeze(1).detach()
    (gradient,) = torch.autograd.grad((P * cost * logprobs).sum(), logits)
    assert gradient.tolist() == pytest.approx(TRUE_GRADIENT, abs=1e-6)


def test_kl_in_the_reward_is_charged_for_tokens_that_count():
    logprobs = torch.tensor([[-1.0, -2.0, torch.nan]])
    ref_logprobs = torch.tensor([[-1.5, -1.0, 0.0]])
    cost = sequence_sum(k1(logprobs, ref_logprobs), torch.tensor([[True, True, False]]))
    assert cost.item() == -0.5


@pytest.mark.parametrize("estimator", KLS.values())
def test_kl_at_the_start_is_zero(estimator):
    logprobs = torch.tensor([[-0.3, -5.0]])
    assert estimator(logprobs, logprobs.clone()).abs().max() == 0
