"""The shared statistics, against numbers worked by hand."""

import math

import numpy as np
import pytest

from muster.stats import (
    chance_of_no_signal,
    distinct_ngrams,
    distinct_share,
    limit_that_keeps,
    mean_interval,
    mean_of,
    no_signal_share,
    pass_at_k,
    running_mean,
    trend,
)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (5, 2, 1, 0.4),
        (5, 2, 2, 0.7),
        (5, 2, 3, 0.9),
        (5, 2, 4, 1.0),
        (4, 1, 2, 0.5),
        (4, 1, 4, 1.0),
        (10, 3, 5, 0.916667),
        (200, 5, 100, 0.970308),
        (16, 0, 8, 0.0),
        (16, 16, 8, 1.0),
    ],
)
def test_pass_at_k_is_the_unbiased_one(n: int, c: int, k: int, expected: float):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=5e-7)


def test_pass_at_more_than_there_are_is_refused():
    with pytest.raises(ValueError, match="pass@5 needs at least 5 completions"):
        pass_at_k(4, 0, 5)
    with pytest.raises(ValueError, match="5 of 4"):
        pass_at_k(4, 5, 1)


def test_samples_are_not_counted_as_problems():
    assert sum(pass_at_k(1, int(place < 50), 1) for place in range(164)) / 164 == pytest.approx(
        0.304878, abs=5e-7
    )


def test_an_interval_holds_the_mean_of_the_prompts_means():
    interval = mean_interval([[1.0, 1.0, 1.0, 1.0], [0.0]])
    assert interval.mean == 0.5
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_an_interval_of_many_prompts_is_near_the_normal_one():
    interval = mean_interval([[float(place % 2)] for place in range(400)])
    assert interval.low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.003)
    assert interval.high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.003)
    assert mean_interval([[float(place % 2)] for place in range(400)]) == interval


def test_more_completions_of_the_same_prompts_do_not_narrow_an_interval():
    one = mean_interval([[float(place % 2)] for place in range(20)])
    ten = mean_interval([[float(place % 2)] * 10 for place in range(20)])
    assert one == ten


def test_one_prompt_has_no_interval_and_none_is_refused():
    assert mean_interval([[0.0, 1.0]]) == (0.5, None, None)
    with pytest.raises(ValueError, match="at least one prompt"):
        mean_interval([])


def test_a_mean_is_taken_over_the_numbers_that_are_there():
    assert mean_of([0.5, math.nan, None, 0.8, 0.6, 0.7]) == pytest.approx(0.65)
    assert mean_of([None, math.nan, math.inf]) is None


def test_a_running_mean_looks_back_over_its_window():
    assert running_mean([1.0, None, 3.0, 5.0], 2) == [1.0, 1.0, 3.0, 4.0]
    assert running_mean([None, 2.0], 5) == [None, 2.0]


def test_diversity_counts_what_differs():
    assert distinct_share(["a", "b", "a", "a"]) == 0.5
    assert distinct_share([]) is None
    # (1,2) (2,1) (1,2) and (1,2): two different pairs of four
    assert distinct_ngrams([[1, 2, 1, 2], [1, 2]], 2) == 0.5
    assert distinct_ngrams([[1]], 2) is None


def test_one_outlier_does_not_turn_a_trend():
    line = trend([0.0, 1.0, 2.0, 100.0, 4.0, 5.0])
    assert line is not None
    assert line == pytest.approx((1.0, 0.0, 5.0))


def test_a_trend_leaves_out_what_is_missing_and_minds_the_steps():
    assert trend([1.0, None, 3.0], steps=[0, 5, 10]) == pytest.approx((0.2, 1.0, 3.0))
    assert trend([1.0, None]) is None


def test_a_long_series_has_the_trend_of_all_of_it():
    line = trend([0.5 * place for place in range(5000)])
    assert line == pytest.approx((0.5, 0.0, 2499.5))


@pytest.mark.parametrize(
    ("rate", "size", "expected"),
    [
        (0.1819, 2, 0.702375),
        (0.1819, 4, 0.449041),
        (0.1819, 8, 0.200657),
        (0.1819, 16, 0.040263),
        (0.5, 2, 0.5),
        (0.5, 8, 0.007812),
        (0.9, 2, 0.82),
        (0.9, 16, 0.185302),
        (0.0, 64, 1.0),
        (1.0, 64, 1.0),
    ],
)
def test_a_group_has_no_signal_with_the_chance_that_its_pass_rate_gives(rate, size, expected):  # N2
    assert chance_of_no_signal(rate, size) == pytest.approx(expected, abs=1e-6)


def test_the_share_without_signal_in_smaller_groups_counts_every_draw():
    # Two of [1, 0, 0, 0] are equal in 3 of 6 pairs, two of [1, 1, 1, 1] always.
    assert no_signal_share([[1, 0, 0, 0], [1, 1, 1, 1]], 2) == pytest.approx(0.75)
    # Values in between: of [0, 0, .5, .5, 1, 1] 3 of 15 pairs are equal, and no three.
    assert no_signal_share([[0, 0, 0.5, 0.5, 1, 1]], 2) == pytest.approx(3 / 15)
    assert no_signal_share([[0, 0, 0.5, 0.5, 1, 1]], 3) == 0
    assert no_signal_share([[1, 0], [0, 0], [1, 1]], 1) == 1


def test_the_share_at_the_size_that_was_drawn_is_the_one_that_was_seen():
    assert no_signal_share([[0, 0, 0], [0, 1, 0], [1, 1, 1], [0.5, 0.5, 0.5]], 3) == 0.75


def test_the_share_without_signal_in_larger_groups_follows_from_all_prompts():
    # One prompt, half right: the strength of the prior is the largest, 256, half of it for each value.
    rising = (129 * 130 * 131 * 132) / (258 * 259 * 260 * 261)
    assert no_signal_share([[1, 0]], 4) == pytest.approx(2 * rising)
    # Never right in 4, where others are: a larger group may find it.
    mixed = [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    shares = [no_signal_share(mixed, size) for size in (4, 8, 16, 32, 64)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 0.5
    assert shares[-1] < 0.05
    # Prompts that are either mastered or hopeless stay so.
    apart = [[0.0] * 8, [1.0] * 8] * 4
    assert no_signal_share(apart, 64) > 0.9
    assert no_signal_share([[0.0] * 8] * 4, 64) == pytest.approx(1)


def test_the_estimate_for_larger_groups_is_right_on_average():
    rng = np.random.default_rng(0)
    rates = rng.beta(0.8, 2.0, size=400)
    drawn = [(rng.random(8) < rate).astype(float).tolist() for rate in rates]
    for size in (16, 32, 64):
        true = float(np.mean([chance_of_no_signal(rate, size) for rate in rates]))
        assert no_signal_share(drawn, size) == pytest.approx(true, abs=0.04)


def test_a_share_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one prompt"):
        no_signal_share([[]], 4)
    with pytest.raises(ValueError, match="allowed: at least 1"):
        no_signal_share([[1.0]], 0)
    with pytest.raises(ValueError, match="allowed: 0 to 1"):
        chance_of_no_signal(1.5, 4)


def test_a_limit_keeps_the_share_that_it_is_asked_to_keep():
    assert limit_that_keeps([10] * 19 + [90], 0.95) == 10
    assert limit_that_keeps([10] * 18 + [50, 90], 0.95) == 50
    assert limit_that_keeps([7], 0.95) == 7
    with pytest.raises(ValueError, match="at least one length"):
        limit_that_keeps([], 0.95)
