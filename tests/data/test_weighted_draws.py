"""Draws by weight: their frequencies, their purity, and what happens where prompts run out."""

import numpy as np
import pytest

from muster.data import weighted_draw

WEIGHTS = [1.0, 2.0, 3.0, 0.5, 1.5]


def statistic(counts: np.ndarray, chances: np.ndarray) -> float:
    """Pearson's chi-square."""
    expected = counts.sum() * chances
    return float(((counts - expected) ** 2 / expected).sum())


def test_single_draws_come_as_often_as_their_weights_say():
    counts = np.bincount([weighted_draw(WEIGHTS, 5, start, 1)[0] for start in range(6_000)], minlength=5)
    # 4 degrees of freedom: above 18.5 in one of 1,000 seeds.
    assert statistic(counts, np.array(WEIGHTS) / sum(WEIGHTS)) < 18.5


def test_pairs_come_as_often_as_drawing_one_after_the_other_says():
    total = sum(WEIGHTS)
    chances = np.array(
        [[0.0 if i == j else a / total * b / (total - a) for j, b in enumerate(WEIGHTS)]
         for i, a in enumerate(WEIGHTS)]
    )  # fmt: skip
    counts = np.zeros((5, 5))
    for start in range(6_000):
        first, second = weighted_draw(WEIGHTS, 6, start, 2)
        counts[first, second] += 1
    off = ~np.eye(5, dtype=bool)
    assert counts[~off].sum() == 0
    # 19 degrees of freedom: above 43.8 in one of 1,000 seeds.
    assert statistic(counts[off], chances[off]) < 43.8


@pytest.mark.parametrize("weight", [1e-3, 1.0, 7e5])
def test_equal_weights_draw_evenly_whatever_they_are(weight):
    orders = {tuple(weighted_draw([weight] * 3, 7, start, 3)) for start in range(60)}
    assert len(orders) == 6
    drawn = [index for start in range(2_000) for index in weighted_draw([weight] * 8, 7, start, 2)]
    # 7 degrees of freedom: above 24.3 in one of 1,000 seeds.
    assert statistic(np.bincount(drawn, minlength=8), np.full(8, 1 / 8)) < 24.3


def test_a_draw_follows_from_its_arguments_and_stays_the_same_for_ever():
    assert weighted_draw(WEIGHTS, 3407, 12, 4) == weighted_draw(WEIGHTS, 3407, 12, 4) == [2, 0, 4, 3]
    many = [1.0] * 100
    draws = {tuple(weighted_draw(many, seed, start, 9)) for seed in range(4) for start in range(5)}
    assert len(draws) == 20


def test_no_prompt_comes_twice_in_a_step_before_all_have_come():
    assert sorted(weighted_draw(WEIGHTS, 1, 0, 5)) == [0, 1, 2, 3, 4]
    assert sorted(weighted_draw(WEIGHTS, 1, 0, 2, taken=[0, 2, 3])) == [1, 4]
    assert set(weighted_draw(WEIGHTS, 1, 0, 3, taken=[0, 2, 3])[:2]) == {1, 4}
    twice = weighted_draw(WEIGHTS, 1, 0, 12)
    assert sorted(twice[:5]) == sorted(twice[5:10]) == [0, 1, 2, 3, 4]
    assert len(set(twice[10:])) == 2
    assert weighted_draw([1.0, 1.0], 1, 0, 1, taken=[0, 1, 0]) == [1]


@pytest.mark.parametrize("weights", [[], [0.0, 1.0], [-1.0], [np.inf], [np.nan, 1.0]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(ValueError, match="a weight above 0"):
        weighted_draw(weights, 1, 0, 1)
