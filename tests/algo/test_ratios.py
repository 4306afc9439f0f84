import math

import pytest
import torch

from muster.algo.ratios import (
    exp_bounded,
    is_clamped,
    mask_outside,
    no_correction,
    sampler_ratio,
    sequence_mean,
    sequence_sum,
    truncate,
)

GAPS = [[0.0, 0.7, -0.5, 1.2]]


@pytest.fixture
def tokens(make_tokens):
    zeros = torch.zeros(1, 4, dtype=torch.float64)
    return make_tokens(zeros, old=zeros, sampler=-torch.tensor(GAPS, dtype=torch.float64))


def assert_row(actual, expected):
    torch.testing.assert_close(actual[0], torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


def test_truncation_bounds_how_much_a_token_counts_for_the_sampler_gap(tokens):
    assert_row(sampler_ratio(tokens), [1, 2.013753, 0.606531, 3.320117])
    assert_row(truncate(tokens, cap=2.0), [1, 2, 0.606531, 2])
    assert_row(truncate(tokens), [1, 2, 0.606531, 2])


def test_masking_drops_tokens_on_which_sampler_and_learner_disagree(tokens):
    assert_row(mask_outside(tokens, low=0.5, high=2.0), [1, 0, 0.606531, 0])


def test_a_sequence_is_corrected_by_its_product_or_its_geometric_mean(tokens):
    assert_row(sampler_ratio(tokens, level="sequence"), [4.055200] * 4)
    assert_row(truncate(tokens, cap=2.0, level="sequence"), [2] * 4)
    assert_row(sampler_ratio(tokens, level="sequence_mean"), [1.419068] * 4)
    assert_row(mask_outside(tokens, level="sequence"), [0] * 4)


def test_no_correction_is_one_everywhere(tokens):
    assert_row(no_correction(tokens), [1] * 4)


def test_the_mean_of_log_ratios_does_not_drift_with_length(make_tokens):  # B20
    long = make_tokens(torch.zeros(1, 100), old=torch.full((1, 100), -0.012), sampler=torch.zeros(1, 100))
    assert sampler_ratio(long, level="sequence")[0, 0].item() == pytest.approx(0.301194, abs=1e-6)
    assert sampler_ratio(long, level="sequence_mean")[0, 0].item() == pytest.approx(0.988072, abs=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence_mean"])
def test_length_does_not_decide_what_is_kept_where_the_engines_agree(make_tokens, level):
    generator = torch.Generator().manual_seed(0)
    for length in (10, 1000):
        gaps = torch.randn(64, length, generator=generator, dtype=torch.float64) * 1e-3
        tokens = make_tokens(gaps, old=gaps, sampler=torch.zeros_like(gaps))
        assert (mask_outside(tokens, level=level) > 0).all()


def test_tokens_that_do_not_count_are_no_part_of_a_sequence():
    values = torch.tensor([[1.0, 2.0, math.nan], [math.inf, math.nan, 5.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert sequence_sum(values, mask).tolist() == [[3.0], [0.0]]
    assert sequence_mean(values, mask).tolist() == [[1.5], [0.0]]


def test_corrections_carry_no_gradient(make_tokens):
    old = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    tokens = make_tokens([[0.0, 0.0]], old=old, sampler=[[0.1, -0.2]])
    assert not truncate(tokens).requires_grad
    assert not mask_outside(tokens, level="sequence").requires_grad


def test_a_log_ratio_is_bounded_before_exp_and_nowhere_else():
    log_ratio = torch.tensor([[-30.0, 0.0, 19.9, 1000.0]])
    assert exp_bounded(log_ratio)[0, 3].item() == pytest.approx(4.85e8, rel=1e-3)
    assert exp_bounded(log_ratio).isfinite().all()
    assert is_clamped(log_ratio).tolist() == [[True, False, False, True]]
