"""Gradients of logprobs and entropies by hand-written formulas, against finite differences."""

import math

import pytest
import torch

from muster.logprobs import token_stats


def _logits(rows=7, num_vocab=11):
    generator = torch.Generator().manual_seed(0)
    return (3 * torch.randn(rows, num_vocab, generator=generator, dtype=torch.float64)).requires_grad_()


def _gradient(of):
    assert of.grad is not None
    return of.grad


def _stats(logits, temperature=1.0, entropy_gradient=True):
    return token_stats(
        lambda x: x,
        logits,
        torch.arange(len(logits)) % logits.shape[1],
        temperature=temperature,
        num_vocab=logits.shape[1],
        entropy_gradient=entropy_gradient,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gradients_equal_finite_differences(temperature):
    assert torch.autograd.gradcheck(lambda x: _stats(x, temperature)[:2], _logits())
    assert torch.autograd.gradcheck(lambda x: _stats(x, temperature).entropy, _logits())
    assert torch.autograd.gradcheck(lambda x: _stats(x, temperature, False).logprobs, _logits())


def test_values_are_those_of_the_softmax():
    logits = _logits()
    table = logits.log_softmax(dim=1)
    stats = _stats(logits)
    torch.testing.assert_close(stats.logprobs, table.diagonal(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(stats.entropy, -(table.exp() * table).sum(dim=1), rtol=1e-13, atol=1e-13)


def test_a_token_that_a_model_rules_out_takes_no_part():
    logits = _logits(rows=3).detach()
    without = logits[:, :8].clone().requires_grad_()
    logits[:, 8:] = -math.inf
    logits.requires_grad_()
    for stats, values in ((_stats(logits), logits), (_stats(without), without)):
        (stats.logprobs.sum() + 2 * stats.entropy.sum()).backward()
        assert torch.isfinite(stats.entropy).all()
        assert torch.isfinite(_gradient(values)).all()
    torch.testing.assert_close(_gradient(logits)[:, :8], _gradient(without), rtol=1e-13, atol=1e-13)
    assert not _gradient(logits)[:, 8:].any()


def test_a_certain_token_has_no_entropy_and_no_gradient():
    logits = torch.tensor([[800.0, 0.0, -800.0]], requires_grad=True)
    stats = _stats(logits)
    (stats.logprobs + stats.entropy).sum().backward()
    assert stats.logprobs.item() == 0
    assert stats.entropy.item() == 0
    assert not _gradient(logits).any()


def test_rows_of_several_blocks_are_each_their_own():
    # 40 rows of 40,000 logits: more than passes through the cache at once.
    logits = torch.randn(40, 40_000, generator=torch.Generator().manual_seed(1)).requires_grad_()
    stats = _stats(logits)
    table = logits.detach().double().log_softmax(dim=1)
    entropy = -(table.exp() * table).sum(dim=1)
    torch.testing.assert_close(stats.logprobs.double(), table.diagonal(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(stats.entropy.double(), entropy, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, 40)
    (stats.logprobs * weights).sum().backward()
    expected = -table.exp() * weights[:, None].double()
    expected[torch.arange(40), torch.arange(40)] += weights.double()
    torch.testing.assert_close(_gradient(logits).double(), expected, rtol=1e-4, atol=1e-9)
