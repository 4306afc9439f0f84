from math import nan, sqrt

import pytest
import torch

from muster.algo.advantages import (
    ADVANTAGES,
    batch_scaled,
    batch_whitened,
    center,
    leave_one_out,
    normalize_then_sum,
    sum_then_normalize,
    token_returns,
    whiten,
    zscore,
)


def rewards(*groups):
    return torch.tensor(groups, dtype=torch.float64)


def assert_rows(actual, *expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=6e-7, rtol=0)


@pytest.mark.parametrize(
    ("group", "with_1e_4", "with_1e_6"),
    [
        (
            (1, 0, 0, 1),
            (0.865875, -0.865875, -0.865875, 0.865875),
            (0.866024, -0.866024, -0.866024, 0.866024),
        ),
        (
            (1, 0, 0, 0),
            (1.499700, -0.499900, -0.499900, -0.499900),
            (1.499997, -0.499999, -0.499999, -0.499999),
        ),
        ((0.1, 0.5, 0.9, 0.5), (-1.224370, 0, 1.224370, 0), (-1.224741, 0, 1.224741, 0)),
        ((2, -1), (0.707073, -0.707073), (0.707106, -0.707106)),
        ((1, 1, 2), (-0.577250, -0.577250, 1.154501), (-0.577349, -0.577349, 1.154699)),
        ((1, 0, 0, 0, 0, 0, 0, 0), (2.474174, *[-0.353453] * 7), (2.474867, *[-0.353552] * 7)),
    ],
)
def test_zscore_divides_by_the_unbiased_deviation_plus_epsilon(group, with_1e_4, with_1e_6):
    assert_rows(zscore(rewards(group)), with_1e_4)
    assert_rows(zscore(rewards(group), eps=1e-6), with_1e_6)


@pytest.mark.parametrize(
    ("group", "population"),
    [
        ((1, 0, 0, 0), (1.732051, -0.577350, -0.577350, -0.577350)),
        ((2, -1), (1.0, -1.0)),
        ((1, 1, 2), (-0.707107, -0.707107, 1.414214)),
    ],
)
def test_dividing_by_g_instead_of_g_minus_1_would_scale_all_advantages_alike(group, population):
    size = len(group)
    assert_rows(zscore(rewards(group), eps=0.0) * sqrt(size / (size - 1)), population)


@pytest.mark.parametrize(("size", "factor"), [(2, 1.414214), (4, 1.154701), (8, 1.069045), (16, 1.032796)])
def test_the_choice_of_deviation_matters_less_in_larger_groups(size, factor):
    group = torch.arange(size, dtype=torch.float64)[None]
    population = (group - group.mean()) / group.std(correction=0)
    assert (population / zscore(group, eps=0.0)).mean().item() == pytest.approx(factor, abs=1e-6)


def test_center_keeps_the_scale_of_the_rewards():
    assert_rows(
        center(rewards((1, 0, 0, 1), (1, 0, 0, 0))), (0.5, -0.5, -0.5, 0.5), (0.75, -0.25, -0.25, -0.25)
    )


def test_leave_one_out_compares_with_the_mean_of_the_others():
    groups = rewards((1, 0, 0, 1), (1, 0, 0, 0), (0.1, 0.5, 0.9, 0.5))
    expected = (
        (0.666667, -0.666667, -0.666667, 0.666667),
        (1, -0.333333, -0.333333, -0.333333),
        (-0.533333, 0, 0.533333, 0),
    )
    assert_rows(leave_one_out(groups), *expected)


def test_each_way_of_scaling_has_its_own_value():  # B1
    groups = rewards((1, 0, 0, 0), (1, 1, 1, 0))
    assert_rows(zscore(groups), (1.499700, *[-0.499900] * 3), (*[0.499900] * 3, -1.499700))
    assert_rows(batch_scaled(groups), (1.402859, *[-0.467620] * 3), (*[0.467620] * 3, -1.402859))
    assert_rows(center(groups), (0.75, *[-0.25] * 3), (*[0.25] * 3, -0.75))


def test_whitening_divides_by_the_deviation_of_the_centered_batch():
    assert_rows(batch_whitened(rewards((1, 0), (1, 1))), (1.224745, -1.224745), (0, 0))


@pytest.mark.parametrize("advantage", ADVANTAGES.values())
def test_easy_prompts_earn_nothing_for_being_easy(advantage):  # B2
    assert torch.equal(advantage(rewards((0, 0), (1, 1))), torch.zeros(2, 2, dtype=torch.float64))


def test_groups_of_different_sizes_are_padded_with_absent_rollouts():  # B3
    expected = ((0.707007, -0.707007, 0), (0.577250, 0.577250, -1.154501))
    actual = zscore(rewards((1, 0, nan), (1, 1, 0)))
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("advantage", ADVANTAGES.values())
def test_a_group_that_shrank_to_one_carries_no_signal(advantage):  # B4
    groups = rewards((7, nan, nan), (nan, nan, nan))
    assert torch.equal(advantage(groups), torch.zeros(2, 3, dtype=torch.float64))


def test_an_abstention_leaves_mean_and_deviation():  # B5
    assert_rows(zscore(rewards((1, nan, 0, 1))), (0.577250, 0, -1.154501, 0.577250))
    assert_rows(leave_one_out(rewards((1, nan, 0, 1))), (0.5, 0, -1, 0.5))
    assert_rows(batch_scaled(rewards((1, nan, 0, 1)), eps=0.0), (0.577350, 0, -1.154701, 0.577350))
    assert_rows(batch_whitened(rewards((1, nan, 0, 1)), eps=0.0), (0.577350, 0, -1.154701, 0.577350))


@pytest.mark.parametrize("advantage", ADVANTAGES.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-30, -7.7, 1e6 + 0.1])
def test_equal_rewards_have_advantage_exactly_zero(advantage, dtype, value):
    groups = torch.full((3, 8), value, dtype=dtype)
    groups[1, 3] = nan
    groups[2] = torch.arange(8)  # a group with signal beside them changes nothing
    assert advantage(groups)[:2].abs().max() == 0
    assert advantage(groups).dtype == dtype


TWO_REWARDS = torch.tensor([[[1, 0, 1, 0]], [[0.1, 0.1, 0.2, 0.2]]], dtype=torch.float64)


def test_summing_first_lets_the_larger_reward_decide():
    actual = sum_then_normalize(TWO_REWARDS, torch.ones(2), zscore)
    assert_rows(actual, (0.775421, -0.947737, 0.947737, -0.775421))


def test_normalizing_first_gives_each_reward_its_share():
    actual = normalize_then_sum(TWO_REWARDS, torch.ones(2), zscore)
    assert_rows(actual, (0.000954, -1.224658, 1.224658, -0.000954))
    before_the_batch_step = zscore(TWO_REWARDS[0]) + zscore(TWO_REWARDS[1])
    assert_rows(before_the_batch_step, (0.001347, -1.730403, 1.730403, -0.001347))


@pytest.mark.parametrize("combine", [sum_then_normalize, normalize_then_sum])
def test_a_reward_that_abstains_contributes_nothing(combine):  # B6
    parts = torch.tensor([[[1, 0, nan, 1]], [[0.2, 0.4, 0.6, 0.8]]])
    assert combine(parts, torch.ones(2), zscore).isfinite().all()
    absent = torch.tensor([[[1, 0, nan, 1]], [[0.2, 0.4, nan, 0.8]]])
    assert combine(absent, torch.ones(2), zscore)[0, 2] == 0


@pytest.mark.parametrize("combine", [sum_then_normalize, normalize_then_sum])
def test_reward_weights_count(combine):
    only_second = combine(TWO_REWARDS, torch.tensor([0.0, 1.0]), zscore)
    assert only_second[0, 0] == only_second[0, 1] < only_second[0, 2]


def test_a_group_without_signal_stays_at_zero_beside_others_when_rewards_are_normalized_first():
    parts = torch.tensor([[[1, 0.3, 0.1], [0.1, 0.1, 0.1]], [[0.2, 0.7, 0.9], [0.4, 0.4, 0.4]]])
    actual = normalize_then_sum(parts, torch.ones(2), zscore)
    assert actual[1].abs().max() == 0 < actual[0].abs().min()


def test_returns_charge_the_kl_that_is_still_to_come():
    kl = torch.tensor([[0.2, 0.4, 0.1]], dtype=torch.float64)
    reward = torch.ones(1, dtype=torch.float64)
    everywhere = token_returns(reward, kl, torch.tensor([[True, True, True]]), kl_coef=0.1)
    assert_rows(everywhere, (0.93, 0.95, 0.99))
    tool_output = token_returns(reward, kl, torch.tensor([[True, False, True]]), kl_coef=0.1)  # B15
    assert_rows(tool_output, (0.97, 0.99, 0.99))


def test_whitened_returns_have_mean_zero_and_variance_one_over_the_tokens_that_count():
    returns = torch.tensor([[0.93, 0.95, 0.99], [0.1, nan, nan]], dtype=torch.float64)
    mask = returns.isfinite()
    whitened = whiten(returns, mask)
    assert whitened[mask].mean().item() == pytest.approx(0, abs=1e-12)
    assert whitened[mask].var().item() == pytest.approx(1, abs=1e-6)
    assert whitened[~mask].abs().max() == 0
    assert whiten(returns, torch.zeros_like(mask)).abs().nan_to_num().max() == 0
