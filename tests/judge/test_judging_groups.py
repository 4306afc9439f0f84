"""From the scores of groups to advantages: who counts, what enters, what it is worth."""

import math

import pytest
import torch

from muster.algo.advantages import center, leave_one_out, normalize_then_sum, sum_then_normalize, zscore
from muster.judge import Judge, raw_signal
from muster.records import Score
from toy_run import completion_of, group_of

NAN = math.nan


def judge_of(**settings):
    base = {"advantage": zscore, "combine": sum_then_normalize, "weights": {"r": 1.0}}
    return Judge(**{**base, **settings})


def close(tensor, expected):
    torch.testing.assert_close(
        tensor, torch.tensor(expected, dtype=tensor.dtype), atol=1e-6, rtol=0, equal_nan=True
    )


def test_an_abstention_is_left_out_of_mean_and_spread():  # B5
    verdict = judge_of()([group_of([1.0, None, 0.0, 1.0])])
    close(verdict.advantages, [[0.577250, 0.0, -1.154501, 0.577250]])
    close(verdict.rewards, [[1.0, NAN, 0.0, 1.0]])
    assert verdict.counts.tolist() == [[True, False, True, True]]


def test_groups_of_different_size_are_judged_by_themselves():  # B3
    verdict = judge_of()([group_of([1.0, 0.0]), group_of([1.0, 1.0, 0.0], slot=1)])
    close(verdict.advantages, [[0.707007, -0.707007, 0.0], [0.577250, 0.577250, -1.154501]])
    assert verdict.counts.tolist() == [[True, True, False], [True, True, True]]


def test_easy_prompts_get_nothing_for_being_easy():  # B2
    verdict = judge_of()([group_of([0.0, 0.0]), group_of([1.0, 1.0], slot=1)])
    assert verdict.advantages.abs().max() == 0
    assert verdict.signal.tolist() == [False, False]
    assert verdict.counts.all()


@pytest.mark.parametrize("combine", [sum_then_normalize, normalize_then_sum])
def test_a_failure_leaves_its_group_even_where_another_reward_gave_a_number(combine):
    failed = Score(value=None, parts={"r": None, "s": 1.0}, failures={"r": "raised"})
    scores = [Score(value=2 * x, parts={"r": x, "s": x}) for x in (1.0, 0.0)]
    verdict = judge_of(weights={"r": 1.0, "s": 1.0}, combine=combine)([group_of([failed, *scores])])
    assert verdict.counts.tolist() == [[False, True, True]]
    assert math.isnan(verdict.rewards[0, 0])
    assert verdict.advantages[0, 0] == 0
    assert verdict.advantages[0, 1] > 0 > verdict.advantages[0, 2]


def test_a_group_that_shrank_to_one_carries_no_signal_but_counts():  # B4
    for advantage in (zscore, center, leave_one_out):
        verdict = judge_of(advantage=advantage)([group_of([7.0, None, None])])
        assert verdict.advantages.tolist() == [[0.0, 0.0, 0.0]]
        assert verdict.signal.tolist() == [False]
        assert verdict.counts.tolist() == [[True, False, False]]


def test_a_group_in_which_nobody_scored_is_all_zero():
    verdict = judge_of()([group_of([None, None]), group_of([1.0, 0.0], slot=1)])
    assert verdict.advantages[0].tolist() == [0.0, 0.0]
    assert verdict.signal.tolist() == [False, True]


def test_masked_truncated_completions_stay_in_the_statistics_and_leave_the_loss():
    completions = [completion_of([5], truncated=cut) for cut in (True, False, False, False)]
    verdict = judge_of(mask_truncated=True)([group_of([1.0, 0.0, 0.0, 0.0], completions=completions)])
    close(verdict.advantages, [[1.499700, -0.499900, -0.499900, -0.499900]])
    assert verdict.counts.tolist() == [[False, True, True, True]]
    assert verdict.signal.tolist() == [True]


def test_a_group_whose_only_difference_was_cut_off_has_no_signal():
    completions = [completion_of([5], truncated=True)] * 2
    verdict = judge_of(mask_truncated=True)([group_of([1.0, 0.0], completions=completions)])
    assert verdict.signal.tolist() == [False]
    assert not verdict.counts.any()


def test_the_overlong_penalty_counts_completion_tokens_from_the_completion_limit():  # N8, B17
    lengths = [15, 16, 17, 18, 20]
    completions = [completion_of([5] * length) for length in lengths]
    verdict = judge_of(advantage=center, overlong=(20, 5))([group_of([1.0] * 5, completions=completions)])
    close(verdict.rewards, [[1.0, 0.8, 0.6, 0.4, 0.0]])
    close(verdict.advantages, [[0.44, 0.24, 0.04, -0.16, -0.56]])


def test_a_penalty_makes_no_number_of_an_abstention():
    verdict = judge_of(overlong=(2, 1))([group_of([None, 1.0, 0.0])], torch.ones(1, 3))
    assert verdict.counts.tolist() == [[False, True, True]]
    assert math.isnan(verdict.rewards[0, 0])
    close(verdict.rewards[:, 1:], [[-1.0, -2.0]])


def test_the_kl_penalty_is_subtracted_from_the_rewards():
    verdict = judge_of(advantage=center)([group_of([1.0, 0.0])], torch.tensor([[0.25, 0.75]]))
    close(verdict.rewards, [[0.75, -0.75]])
    close(verdict.advantages, [[0.75, -0.75]])


def two_rewards(weights):
    first, second = [1, 0, 1, 0], [0.1, 0.1, 0.2, 0.2]
    return [
        group_of(
            [
                Score(value=weights[0] * a + weights[1] * b, parts={"a": a, "b": b})
                for a, b in zip(first, second, strict=True)
            ]
        )
    ]


def test_rewards_are_summed_then_normalized():  # N2
    verdict = judge_of(weights={"a": 1.0, "b": 1.0})(two_rewards((1, 1)))
    close(verdict.advantages, [[0.775421, -0.947737, 0.947737, -0.775421]])
    close(verdict.rewards, [[1.1, 0.1, 1.2, 0.2]])


def test_rewards_are_normalized_then_summed():  # N2
    verdict = judge_of(weights={"a": 1.0, "b": 1.0}, combine=normalize_then_sum)(two_rewards((1, 1)))
    close(verdict.advantages, [[0.000954, -1.224658, 1.224658, -0.000954]])


@pytest.mark.parametrize("combine", [sum_then_normalize, normalize_then_sum])
def test_weights_turn_and_scale_what_a_reward_says(combine):
    plain = judge_of(weights={"a": 1.0, "b": 2.0}, combine=combine)(two_rewards((1, 2)))
    turned = judge_of(weights={"a": -1.0, "b": -2.0}, combine=combine)(two_rewards((-1, -2)))
    close(turned.advantages, (-plain.advantages).tolist())
    close(plain.rewards, [[1.2, 0.2, 1.4, 0.4]])


@pytest.mark.parametrize("combine", [sum_then_normalize, normalize_then_sum])
def test_a_reward_of_weight_zero_is_for_the_logs_only(combine):
    alone = judge_of(weights={"a": 1.0}, combine=combine)(two_rewards((1, 0)))
    logged = judge_of(weights={"a": 1.0, "b": 0.0}, combine=combine)(two_rewards((1, 0)))
    assert torch.equal(alone.advantages, logged.advantages)


def test_a_reward_of_weight_zero_makes_no_number_of_an_abstention():  # B5 by the back door
    scores = [Score(value=None, parts={"a": None, "b": 3.0}), Score(value=1.0, parts={"a": 1.0, "b": 3.0})]
    verdict = judge_of(weights={"a": 1.0, "b": 0.0})([group_of(scores)])
    assert verdict.counts.tolist() == [[False, True]]


def test_one_abstaining_reward_leaves_the_others_their_say():  # B6
    scores = [
        Score(value=None, parts={"a": a, "b": b})
        for a, b in zip([1, 0, None, 1], [0.2, 0.4, 0.6, 0.8], strict=True)
    ]
    for combine in (sum_then_normalize, normalize_then_sum):
        verdict = judge_of(weights={"a": 1.0, "b": 1.0}, combine=combine)([group_of(scores)])
        assert verdict.advantages.isfinite().all()
        assert verdict.counts.all()


def test_raw_signal_asks_for_different_scores():
    groups = [group_of([1.0, 1.0, None]), group_of([1.0, 0.0]), group_of([None, None])]
    assert raw_signal(groups) == [False, True, False]
