"""The arithmetic of the measurements, and what the page makes of it."""

import pytest

import rendering
from figures import figure, ratio, rounded, shown


def test_the_median_of_an_even_number_lies_between_the_middle_two():
    assert figure([4.0, 1.0, 2.0, 10.0]) == (3.0, 1.0, 10.0, 4)


def test_a_ratio_is_of_the_medians_and_its_span_is_of_the_rounds():
    # Rounds: 8/2 = 4, 9/4 = 2.25, 10/2.5 = 4; medians 9 / 2.5.
    assert ratio([8.0, 9.0, 10.0], [2.0, 4.0, 2.5]) == (3.6, 2.25, 4.0, 3)


def test_what_was_not_measured_in_rounds_has_no_ratio():
    with pytest.raises(ValueError, match="2 measurements against 1"):
        ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="nothing was measured"):
        figure([])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2.4142, "2.41"),
        (61.849, "61.8"),
        (1234.5, "1,234"),
        (0.05678, "0.0568"),
        (3.2e-6, "3.20e-06"),
    ],
)
def test_numbers_are_shown_with_three_digits(value, text):
    assert rounded(value) == text


def test_a_single_measurement_has_no_span():
    assert shown(figure([2.0])) == "2.00"
    assert shown(figure([2.0, 3.0, 2.5])) == "2.50 (2.00 to 3.00)"


def steps(muster, trl):
    return {
        "S": {
            "seconds": {"muster": muster, "trl": trl},
            "peak_bytes": {"muster": 3_000_000_000, "trl": 9_000_000_000},
            "muster_phases": [{"sample": 3.0, "backward": 1.0}, {"sample": 3.0, "backward": 1.0}],
            "products_s": {"sample": 3.0, "reference": 2.0, "update": 7.0},
        }
    }


def test_the_page_says_how_many_times_as_fast_and_how_much_of_the_memory():
    page = rendering.SECTIONS["steps"](steps([20.0, 25.0], [60.0, 60.0]))
    assert "| 22.5 (20.0 to 25.0) s | TRL 60.0 (60.0 to 60.0) s | 2.67 (2.40 to 3.00) times as fast |" in page
    assert "| 3.0 GB | TRL 9.0 GB | 0.333 of it |" in page
    assert "sample 75%, backward 25%" in page
    assert "| 3.0 s | 2.0 s | 7.0 s | 12 s | 53% | 5.00 |" in page


def test_a_side_that_is_slower_is_said_to_be():
    assert "| 0.500 times as fast |" in rendering.SECTIONS["steps"](steps([2.0], [1.0]))


def target(reached):
    side = {"steps": 4, "evaluations": [{"step": 4, "seconds": 40.0, "reward": 0.9}]}
    return {
        "target": 0.85,
        "eval_every": 2,
        "sides": {
            "muster": {**side, "reached": True, "training_s": 40.0},
            "trl": {**side, "reached": reached, "training_s": 120.0},
        },
    }


def test_a_reward_that_one_side_did_not_reach_gives_no_ratio():
    assert "TRL / Muster: 3.00." in rendering.SECTIONS["target"](target(True))
    page = rendering.SECTIONS["target"](target(False))
    assert "No ratio" in page
    assert "TRL / Muster" not in page


def test_the_page_holds_every_part_that_was_measured_and_no_other():
    on = {
        "date": "2026-01-01",
        "command": "python bench/run.py steps",
        "processor": "one",
        "instructions": "AVX2",
        "threads": 2,
        "memory_bytes": None,
        "others_share": 0.014,
        "versions": {"torch": "2.13.0"},
        "python": "3.11",
        "model": "m",
    }
    page = rendering.report({"steps": {**steps([1.0], [2.0]), "measured_on": on}})
    assert page.count("\n## ") == 3
    assert "other processes took meanwhile: steps 1%." in page
    assert "| steps | 2026-01-01 | `python bench/run.py steps` | one, AVX2, 2 threads | torch 2.13.0" in page
