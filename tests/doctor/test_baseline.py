"""First against last steps: trends, noise and beginnings, on numbers worked by hand."""

import math

import pytest

from muster.doctor.baseline import Series, series_of, shift_of, sure_by, window


def series(*values: float) -> Series:
    return series_of(range(1, len(values) + 1), values)


def test_numbers_that_are_not_there_are_left_out():
    assert series_of([1, 2, 3, 4], [0.5, None, math.nan, 2]) == Series((1, 4), (0.5, 2.0))


@pytest.mark.parametrize(("count", "width"), [(6, 2), (16, 4), (24, 6), (400, 20)])
def test_the_first_and_last_quarter_are_compared_up_to_twenty_steps(count: int, width: int):
    assert window(count) == width


def test_five_steps_say_nothing():
    assert shift_of(series(1, 2, 3, 4, 5)) is None


def test_six_rising_steps_are_a_trend():
    shift = shift_of(series(1, 2, 3, 4, 5, 60))
    # 15 of 15 pairs rise: (15 - 1) / sqrt(6 * 5 * 17 / 18) = 2.630, one-sided 0.0043.
    assert shift is not None
    assert shift.p_rising == pytest.approx(0.00427, abs=1e-5)
    assert (shift.early, shift.late) == (1.5, 32.5)
    assert shift.rises
    assert not shift.falls
    assert "6 steps" in shift.how


def test_a_trend_within_the_noise_is_none():
    saw = [value for number in range(20) for value in (10 + 0.01 * number, -10 + 0.01 * number)]
    shift = shift_of(series(*saw))
    assert shift is not None
    assert not shift.rises
    assert not shift.falls


def test_one_outlier_moves_nothing():
    shift = shift_of(series(1, 1.1, 1, 1.1, 1, 1.1, 1, 1.1, 1, 1.1, 1, 1e6))
    assert shift is not None
    assert not shift.rises


def test_a_fall_begins_where_it_left_the_first_level_for_good():
    shift = shift_of(
        series(*[5.0, 5.1, 4.9, 5.0, 5.2, 4.8, 5.0, 5.1, 1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0, 1.1])
    )
    assert shift is not None
    assert shift.falls
    assert shift.since == 9


def test_noise_that_came_to_rest_counts():
    shift = shift_of(series(1, 5, 1, 5, 1, 5, 1, 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6))
    assert shift is not None
    assert shift.noise == pytest.approx(1.4826 * 4 / math.sqrt(2))
    assert not shift.rises


@pytest.mark.parametrize(("p", "sure"), [(1e-9, "certain"), (1e-4, "likely"), (0.004, "possible")])
def test_how_sure_follows_from_the_chance_of_it(p: float, sure: str):
    assert sure_by(p) == sure


def test_parts_of_a_series_are_cut_by_step_and_by_share():
    whole = Series((2, 4, 6, 8), (1.0, 2.0, 3.0, 4.0))
    assert whole.since(5) == Series((6, 8), (3.0, 4.0))
    assert whole.last(0.5) == Series((6, 8), (3.0, 4.0))
