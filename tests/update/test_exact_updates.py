"""An update against the slow path: one sequence at a time, logits whole, the loss of all rows at once."""

from dataclasses import replace

import pytest
import torch

from muster import logprobs
from muster.algo.gates import top_entropy
from muster.algo.kl import k3
from muster.algo.recipes import DAPO, GRPO, RECIPES, loss
from muster.batch import count_totals
from muster.clock import Clock
from muster.policy import Scores
from muster.update import Budget, Objective, tokens_of, update
from naive import assert_equal_gradients, exact_model, exact_policy, gradients, make_batch, naive_scores
from tiny import SHARING

GROUPS = [(7, [5, 1]), (3, [2, 3, 1, 6, 4, 1, 1, 2, 2, 5, 3, 1, 1, 9, 1, 1]), (1, [4, 4, 4])]
"""Prompt lengths, and the lengths of 2, 16 and 3 completions."""
LIMIT = 16


def _batch(model, temperature):
    """Advantages, old and reference logprobs a little off the policy's, so that every term has a gradient."""
    batch = make_batch(GROUPS)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        now, _ = naive_scores(model, batch, temperature)

    def near(spread):
        return now + spread * torch.randn(now.shape, generator=generator, dtype=torch.float64)

    return replace(batch, old_logprobs=near(0.3), ref_logprobs=near(0.5), sampler_logprobs=near(0.4))


def _slow(family, batch, totals, objective):
    """Loss and gradients by name."""
    model = exact_model(family)
    scores = Scores(*naive_scores(model, batch, objective.temperature), batch.mask)
    threshold = objective.recipe.gate.threshold
    value = loss(
        tokens_of(batch, scores),
        objective.recipe,
        totals,
        kl_coef=objective.kl_coef,
        entropy_coef=objective.entropy_coef,
        gate_threshold=threshold(scores.entropy[batch.mask].detach()) if threshold else 0.0,
    )
    return value.item(), gradients(model, value)


def _fast(family, batch, totals, objective, budget, packs=True):
    policy = exact_policy(family)
    if not packs:
        policy.plain_because = "the test compares"
    before = policy.snapshot()
    done = update(
        policy,
        torch.optim.SGD([param for _, param in policy.trainable()], lr=1.0),
        batch,
        totals,
        objective,
        max_grad_norm=float("inf"),
        budget=Budget(tokens=budget),
        clock=Clock(),
    )
    assert done.stepped
    return done.loss, {name: before[name] - param.detach() for name, param in policy.trainable()}


def _objective(recipe, temperature=0.9):
    return Objective(recipe=replace(recipe, kl=k3), temperature=temperature, kl_coef=0.3, entropy_coef=0.05)


def _assert_equals_slow_path(family, objective, cuts, rtol=1e-9):
    batch = _batch(exact_model(family), objective.temperature)
    totals = count_totals(batch, 2, 11, LIMIT)
    value, expected = _slow(family, batch, totals, objective)
    assert max(float(grad.abs().max()) for grad in expected.values()) > 1e-3
    for budget, packs in cuts:
        total, found = _fast(family, batch, totals, objective, budget, packs)
        assert total == pytest.approx(value, rel=1e-6 if rtol > 1e-9 else 1e-10)
        assert_equal_gradients(found, expected, rtol)


@pytest.mark.parametrize("family", SHARING)
def test_every_familys_gradient_is_that_of_the_slow_path(family):
    # Cohere rotates queries and keys in float32 whatever the weights are.
    rtol = 1e-6 if family == "cohere" else 1e-9
    _assert_equals_slow_path(family, _objective(GRPO), [(10_000, True), (30, True), (60, False)], rtol)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipes_gradient_is_that_of_the_slow_path(name):
    _assert_equals_slow_path("llama", _objective(RECIPES[name]), [(10_000, True), (1, True)])


def test_a_gate_sees_the_whole_update():
    gated = replace(DAPO, gate=top_entropy(share=0.3))
    _assert_equals_slow_path("qwen3", _objective(gated, 1.0), [(10_000, True), (20, True)])


@pytest.mark.parametrize("tokens", [1, 4, 20])
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_the_head_may_take_few_rows_at_a_time_or_less_than_one(name, tokens, monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_BYTES", tokens * 4 * 259)
    _assert_equals_slow_path("llama", _objective(RECIPES[name]), [(10_000, True), (40, True)])


def test_no_logits_are_formed_twice():
    policy = exact_policy("llama")
    batch = make_batch(GROUPS)
    formed = []
    policy.head.register_forward_hook(lambda module, inputs, output: formed.append(len(output)))
    update(
        policy,
        torch.optim.SGD([param for _, param in policy.trainable()], lr=0.0),
        batch,
        count_totals(batch, 0, 0, LIMIT),
        Objective(recipe=GRPO, temperature=1.0),
        max_grad_norm=1.0,
        budget=Budget(tokens=10_000),
        clock=Clock(),
    )
    assert sum(formed) == int(batch.mask.sum())
