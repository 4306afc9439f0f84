"""Identities that hold for all inputs, found wanting by hypothesis if they don't."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.algo.advantages import ADVANTAGES, batch_whitened, zscore
from muster.algo.recipes import RECIPES, loss
from muster.algo.tokens import Tokens, Totals

SETTINGS = settings(max_examples=25, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**31)
by_advantage = pytest.mark.parametrize("advantage", ADVANTAGES.values(), ids=ADVANTAGES)
by_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@st.composite
def reward_groups(draw):
    """Some groups of rewards in steps of 1/8, so that shifting them is exact."""
    num_prompts, size = draw(st.integers(1, 4)), draw(st.integers(2, 8))
    numbers = st.integers(-16, 16).map(lambda n: n / 8)
    group = st.lists(numbers, min_size=size, max_size=size)
    return torch.tensor(
        draw(st.lists(group, min_size=num_prompts, max_size=num_prompts)), dtype=torch.float64
    )


def assert_same(actual, expected, atol=1e-9):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-9)


@by_advantage
@SETTINGS
@given(rewards=reward_groups())
def test_advantages_of_a_group_sum_to_zero(advantage, rewards):
    assert_same(advantage(rewards).sum(dim=1), torch.zeros(len(rewards), dtype=torch.float64))


@by_advantage
@SETTINGS
@given(rewards=reward_groups(), shift=st.integers(-1000, 1000))
def test_a_constant_added_to_all_rewards_changes_nothing(advantage, rewards, shift):
    assert_same(advantage(rewards + shift), advantage(rewards))


@pytest.mark.parametrize("advantage", [zscore, batch_whitened])
@SETTINGS
@given(rewards=reward_groups(), scale=st.floats(1e-3, 1e3))
def test_scaled_advantages_do_not_depend_on_the_scale_of_the_rewards(advantage, rewards, scale):
    assert_same(advantage(rewards * scale, eps=0.0), advantage(rewards, eps=0.0), atol=1e-7)


@by_advantage
@SETTINGS
@given(rewards=reward_groups(), seed=SEEDS)
def test_permuting_prompts_or_rollouts_permutes_advantages(advantage, rewards, seed):
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randperm(rewards.shape[0], generator=generator)
    rollouts = torch.randperm(rewards.shape[1], generator=generator)
    assert_same(advantage(rewards[prompts][:, rollouts]), advantage(rewards)[prompts][:, rollouts])


@by_advantage
@SETTINGS
@given(rewards=reward_groups(), num_absent=st.integers(1, 3))
def test_absent_rollouts_change_nothing_for_the_others(advantage, rewards, num_absent):
    absent = torch.full((len(rewards), num_absent), torch.nan, dtype=torch.float64)
    padded = advantage(torch.cat([rewards, absent], dim=1))
    assert_same(padded[:, : rewards.shape[1]], advantage(rewards))
    assert padded[:, rewards.shape[1] :].abs().max() == 0


def some_update(seed):
    """Tokens of up to five rows with leaves for logprobs and entropy, and their totals."""
    generator = torch.Generator().manual_seed(seed)
    num_rows, width = (int(torch.randint(1, 6, (1,), generator=generator)) for _ in range(2))
    now, old, sampler, ref = torch.randn(4, num_rows, width, generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, width + 1, (num_rows, 1), generator=generator)
    mask = torch.arange(width)[None] < lengths
    tokens = Tokens(
        logprobs=now.clone().requires_grad_(),
        old_logprobs=(now + 0.2 * old).detach(),
        sampler_logprobs=(now + 0.2 * old + 0.1 * sampler).detach(),
        ref_logprobs=ref,
        entropy=sampler.abs().requires_grad_(),
        advantages=torch.randn(num_rows, generator=generator, dtype=torch.float64),
        mask=mask,
    )
    return tokens, Totals(tokens=int(mask.sum()), sequences=num_rows, limit=width)


def loss_and_gradients(tokens, recipe, totals):
    value = loss(tokens, recipe, totals, kl_coef=0.1, entropy_coef=0.01)
    return [value, *torch.autograd.grad(value, [tokens.logprobs, tokens.entropy])]


def mapped(tokens, change):
    """The tokens with each tensor changed, as leaves of their own."""
    changed = {f.name: change(getattr(tokens, f.name).detach()) for f in fields(tokens)}
    return replace(
        tokens,
        **{
            **changed,
            "logprobs": changed["logprobs"].requires_grad_(),
            "entropy": changed["entropy"].requires_grad_(),
        },
    )


@by_recipe
@SETTINGS
@given(seed=SEEDS, num_pads=st.integers(1, 5))
def test_padding_changes_neither_loss_nor_gradient(recipe, seed, num_pads):
    tokens, totals = some_update(seed)
    width = tokens.mask.shape[1]

    def pad(values):
        filler = False if values.dtype == torch.bool else torch.nan
        return values if values.ndim == 1 else torch.nn.functional.pad(values, (0, num_pads), value=filler)

    value, *gradients = loss_and_gradients(tokens, recipe, totals)
    padded_value, *padded = loss_and_gradients(mapped(tokens, pad), recipe, totals)
    assert_same(padded_value, value)
    for gradient, of_padded in zip(gradients, padded, strict=True):
        assert_same(of_padded[:, :width], gradient)
        assert of_padded[:, width:].abs().max() == 0


@by_recipe
@SETTINGS
@given(seed=SEEDS)
def test_cutting_an_update_into_micro_batches_changes_neither_loss_nor_gradient(recipe, seed):
    tokens, totals = some_update(seed)
    value, *gradients = loss_and_gradients(tokens, recipe, totals)
    rows = [
        loss_and_gradients(mapped(tokens, lambda values, i=i: values[i : i + 1]), recipe, totals)
        for i in range(len(tokens.mask))
    ]
    assert_same(sum(row[0] for row in rows), value)
    for gradient, parts in zip(gradients, list(zip(*rows, strict=True))[1:], strict=True):
        assert_same(torch.cat(parts), gradient)


@by_recipe
@SETTINGS
@given(seed=SEEDS)
def test_the_order_of_rows_changes_nothing(recipe, seed):
    tokens, totals = some_update(seed)
    order = torch.randperm(len(tokens.mask), generator=torch.Generator().manual_seed(seed))
    value, gradient, _ = loss_and_gradients(tokens, recipe, totals)
    shuffled_value, shuffled, _ = loss_and_gradients(mapped(tokens, lambda v: v[order]), recipe, totals)
    assert_same(shuffled_value, value)
    assert_same(shuffled, gradient[order])
