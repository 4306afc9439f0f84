"""Mann-Kendall against numbers worked by hand, and differences of two sides with their intervals."""

import pytest

from muster.stats import difference, drift, paired_difference


def test_mann_kendall_of_a_rise_without_exception():
    # n = 5: 10 rises of 10 pairs; variance 5 * 4 * 15 / 18 = 16.667; (10 - 1) / 4.0825 = 2.2045.
    found = drift([1, 2, 3, 4, 5])
    assert found is not None
    assert found.score == pytest.approx(2.2045, abs=1e-4)
    assert found.p_rising == pytest.approx(0.01374, abs=1e-5)
    assert found.p_falling == pytest.approx(1 - found.p_rising)


def test_ties_count_for_neither_and_lower_the_variance():
    # [1, 1, 2, 2]: 4 rises, 2 ties; variance (4 * 3 * 13 - 2 * (2 * 1 * 9)) / 18 = 6.667; 3 / 2.582 = 1.1619.
    found = drift([1, 1, 2, 2])
    assert found is not None
    assert found.score == pytest.approx(1.1619, abs=1e-4)


def test_the_size_of_steps_does_not_matter():
    assert drift([1, 2, 3, 4, 5]) == drift([1, 1.001, 50, 51, 1e9])


@pytest.mark.parametrize(
    ("values", "score"), [([3, 3, 3, 3], 0.0), ([1, 2], None), ([1, None, 2, float("nan")], None)]
)
def test_equal_values_have_no_trend_and_two_say_nothing(values, score):
    found = drift(values)
    assert (found.score if found else None) == score


def test_a_fall_is_a_rise_backwards():
    rise, fall = drift([1, 3, 2, 4, 6, 5]), drift([5, 6, 4, 2, 3, 1])
    assert rise is not None
    assert fall is not None
    assert (rise.p_rising, rise.p_falling) == pytest.approx((fall.p_falling, fall.p_rising))


def test_pairing_takes_out_what_makes_prompts_hard():
    before, after = [0.1, 0.5, 0.9, 0.3], [0.2, 0.6, 1.0, 0.4]
    paired, unpaired = paired_difference(before, after), difference(before, after)
    assert paired.mean == pytest.approx(0.1)
    assert unpaired.mean == pytest.approx(0.1)
    assert paired.low == pytest.approx(0.1)
    assert paired.high == pytest.approx(0.1)
    assert unpaired.low is not None
    assert unpaired.low < 0


def test_the_interval_of_a_difference_is_about_two_standard_errors_wide():
    # Both sides: 200 zeros and 200 ones; the error of each mean is 0.025, of the difference 0.0354.
    sides = [0.0, 1.0] * 200
    found = difference(sides, sides)
    assert found.mean == 0
    assert found.high == pytest.approx(1.96 * 0.0354, abs=0.006)
    assert found.low == pytest.approx(-1.96 * 0.0354, abs=0.006)


def test_sides_of_other_lengths_are_no_pairs_and_empty_ones_no_side():
    with pytest.raises(ValueError, match="2 values can't be paired with 1"):
        paired_difference([1, 2], [1])
    with pytest.raises(ValueError, match="at least one prompt"):
        difference([], [1.0])


def test_one_prompt_says_nothing_about_the_spread():
    assert difference([0.5], [1.0, 0.0, 1.0]).low is None
