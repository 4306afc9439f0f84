"""How often a step computes each rollout: nothing is scored that nobody reads, and nothing twice."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from muster.algo.gates import top_entropy
from muster.algo.recipes import GRPO
from muster.attention import PackedLayout
from muster.loop import train
from tiny import tiny_policy
from toy_rewards import always_one, low_bytes
from toy_run import toy_run


class Passes(NamedTuple):
    """Completions in each pass of a step."""

    forward: list[int]
    """Scored without gradient: for an old policy, the reference or a gate."""
    learning: list[int]
    """With gradient."""


def passes_of_steps(**settings):
    """The passes of each step over 2 groups of 4 completions; those that sample aren't counted."""
    policy = tiny_policy()
    made = Passes([], [])

    def note(module, args, kwargs):
        layout = kwargs.get("layout")
        if isinstance(layout, PackedLayout):
            completions = sum(len(span.completions) for span in layout.groups)
            (made.learning if torch.is_grad_enabled() else made.forward).append(completions)

    policy.backbone.register_forward_pre_hook(note, with_kwargs=True)
    run = toy_run(policy, settings.pop("reward", low_bytes), sampling={"ignore_eos": True}, **settings)
    found = []
    for _ in train(run):
        found.append(Passes(list(made.forward), list(made.learning)))
        made.forward.clear()
        made.learning.clear()
    return found


def only_odd_prompts(completion: str, completion_ids: list[int], prompt: str) -> float:
    """Tells the rollouts of prompts 1 and 3 apart, which end in as many x, and no others."""
    return low_bytes(completion, completion_ids) if prompt.count("x") % 2 else 1.0


def test_weights_that_sampled_and_need_no_reference_are_scored_with_gradient_alone():
    assert passes_of_steps() == [([], [8])] * 3


def test_the_reference_is_scored_once_a_step():
    assert passes_of_steps(objective={"kl_coef": 0.1}) == [([8], [8])] * 3


def test_a_reference_in_the_reward_is_not_scored_again_for_the_loss():
    assert passes_of_steps(kl_in_reward=0.1) == [([8], [8])] * 3


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_more_passes_over_the_rollouts_cost_one_old_and_one_reference_pass(kl_coef):
    scored = [8] * (2 if kl_coef else 1)
    steps = passes_of_steps(passes=3, minibatches=2, objective={"kl_coef": kl_coef})
    assert steps == [(scored, [4] * 6)] * 3


def test_only_a_step_whose_sampler_lags_scores_the_old_policy():
    assert passes_of_steps(sync_every=2, num_steps=4) == [([], [8]), ([8], [8])] * 2


def test_a_gate_by_entropy_costs_the_pass_that_finds_its_threshold():
    gated = passes_of_steps(recipe=replace(GRPO, gate=top_entropy(share=0.5)))
    assert gated == [([8], [8])] * 3


def test_a_small_budget_cuts_passes_and_adds_none():
    for forward, learning in passes_of_steps(budget_tokens=1, objective={"kl_coef": 0.1}):
        assert forward == [1] * 8
        assert learning == [1] * 8


def test_groups_without_signal_are_not_sent_through():
    teaching = [sum(learning) for _, learning in passes_of_steps(reward=only_odd_prompts)]
    assert teaching == [4, 4, 0]


def test_groups_without_signal_are_sent_through_where_they_teach_in_another_way():
    assert passes_of_steps(reward=only_odd_prompts, objective={"kl_coef": 0.1}) == [([8], [8])] * 3
    entropy = passes_of_steps(reward=only_odd_prompts, objective={"entropy_coef": 0.1})
    assert entropy == [([], [8])] * 3


def test_a_step_without_any_signal_scores_one_completion_of_a_few_groups_to_prove_the_sampler():
    assert passes_of_steps(reward=always_one) == [([2], [])] * 3
