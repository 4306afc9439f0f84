"""The name that was meant."""

from muster.nearest import did_you_mean


def test_letters_in_another_order_are_nearer_than_another_letter():
    assert did_you_mean("gpro", ["gspo", "grpo"]) == " Did you mean 'grpo'?"


def test_capitals_make_no_difference_and_what_is_far_is_not_named():
    assert did_you_mean("GRPO", ["grpo", "gspo"]) == " Did you mean 'grpo'?"
    assert did_you_mean("banana", ["grpo", "gspo"]) == ""
