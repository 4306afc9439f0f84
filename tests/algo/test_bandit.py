"""A two-armed bandit: the smallest policy there is, and each recipe must learn it."""

import pytest
import torch

from muster.algo.advantages import normalize_then_sum
from muster.algo.recipes import RECIPES, loss
from muster.algo.tokens import Tokens, Totals

PROMPTS, GROUP = 4, 8


def update(logits, arms, advantages, old, recipe, rate):
    distribution = logits.log_softmax(0)
    entropy = -(distribution.exp() * distribution).sum()
    logprobs = distribution[arms][:, None]
    tokens = Tokens(
        logprobs=logprobs,
        old_logprobs=old,
        sampler_logprobs=old,
        ref_logprobs=None,
        entropy=entropy.expand_as(logprobs),
        advantages=advantages,
        mask=torch.ones_like(logprobs, dtype=torch.bool),
    )
    totals = Totals(tokens=len(arms), sequences=len(arms), limit=1)
    (gradient,) = torch.autograd.grad(loss(tokens, recipe, totals), logits)
    return (logits - rate * gradient).detach().requires_grad_()


def train(recipe, advantage, steps, passes=2, rate=1.0, start=(0.0, 0.0)):
    """Probability of the paid arm after some steps, in each of which the rollouts serve `passes` updates."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    for _ in range(steps):
        probabilities = logits.detach().softmax(0)
        arms = torch.multinomial(probabilities, PROMPTS * GROUP, replacement=True, generator=generator)
        rewards = (arms == 1).double().view(PROMPTS, GROUP)
        old = probabilities.log()[arms][:, None]
        for _ in range(passes):
            logits = update(logits, arms, advantage(rewards).flatten(), old, recipe, rate)
    return logits.softmax(0)[1].item()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_paid_arm_is_found(recipe):
    assert train(recipe, recipe.advantage, steps=40, start=(1.0, 0.0)) > 0.95


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_one_small_step_makes_a_better_completion_likelier(recipe):
    before = 0.5
    assert before < train(recipe, recipe.advantage, steps=1, passes=1, rate=1e-3) < before + 1e-2


def test_two_rewards_are_learned_when_each_is_normalized_first():
    def advantage(rewards):
        parts = torch.stack([rewards, torch.zeros_like(rewards)])
        return normalize_then_sum(parts, torch.ones(2), RECIPES["grpo"].advantage)

    assert train(RECIPES["grpo"], advantage, steps=40) > 0.95
