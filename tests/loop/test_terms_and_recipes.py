"""KL terms, gates, and every recipe taking whole steps on a tiny model."""

from dataclasses import replace

import pytest

from muster.algo.gates import off_policy_sequence, top_entropy
from muster.algo.kl import k1, k2
from muster.algo.recipes import GRPO, RECIPES
from muster.loop import train
from toy_rewards import low_bytes
from toy_run import number, only_at_step, same, toy_run, weights_of


def test_the_kl_penalty_in_the_reward_pulls_back_to_the_reference():
    recipe = replace(GRPO, kl=k1)
    run = toy_run(reward=low_bytes, recipe=recipe, kl_in_reward=0.5, lr=1e-2, num_steps=3)
    for report in train(run):
        for group, traces in zip(report.groups, report.traces, strict=True):
            for rollout, trace in zip(group.rollouts, traces, strict=True):
                if trace.ref_logprobs:
                    sampled = rollout.completion.sampler_logprobs
                    kl = sum(s - r for s, r in zip(sampled, trace.ref_logprobs, strict=True))
                    assert rollout.score.value is not None
                    assert trace.reward == pytest.approx(rollout.score.value - 0.5 * kl, abs=1e-4)
    assert run.state.version == 3


def test_a_kl_term_moves_the_weights_where_rewards_are_all_equal():
    run = toy_run(reward=only_at_step(1, low_bytes), objective={"kl_coef": 1.0}, num_steps=2)
    first, second = train(run)
    assert first.metrics["kl_k3"] == 0
    assert second.metrics["frac_reward_zero_std"] == 1
    assert number(second, "kl_k3") > 1e-5
    assert number(second, "grad_norm") > 1e-3
    assert second.metrics["updates"] == 1


def test_a_gate_that_asks_for_the_whole_update_does_not_depend_on_the_budget():
    recipe = replace(GRPO, gate=top_entropy(share=0.25))
    norms = [
        next(train(toy_run(recipe=recipe, budget_tokens=budget))).metrics["grad_norm"] for budget in (1, 4096)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0] != pytest.approx(next(train(toy_run())).metrics["grad_norm"], rel=1e-2)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_takes_real_steps(name):  # B24
    run = toy_run(recipe=RECIPES[name], minibatches=2, passes=2, objective={"kl_coef": 0.05}, num_steps=2)
    before = weights_of(run)
    reports = list(train(run))
    assert all(report.metrics["updates/skipped"] == 0 for report in reports)
    assert sum(number(report, "updates") for report in reports) > 0
    assert not same(before, weights_of(run))
    assert all(param.isfinite().all() for _, param in run.policy.trainable())


@pytest.mark.parametrize(
    "recipe",
    [
        replace(GRPO, gate=off_policy_sequence(max_drift=0.0)),
        replace(GRPO, kl=lambda new, ref, old: k2(new, ref, old, ratio="detached")),
    ],
)
def test_choices_off_the_recipes_take_real_steps(recipe):
    run = toy_run(recipe=recipe, objective={"kl_coef": 0.1, "entropy_coef": 0.01}, passes=2, sync_every=2)
    assert [report.metrics["updates"] for report in train(run)] == [2, 2, 2]


def test_a_run_computed_twice_is_the_same():  # P15
    first, second = (list(train(toy_run(minibatches=2, passes=2, sync_every=2))) for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert (one.groups, one.traces, one.metrics) == (two.groups, two.traces, two.metrics)
