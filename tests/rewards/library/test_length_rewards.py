import pytest

from muster.rewards.lengths import brevity, length, overlong, repetition


@pytest.mark.parametrize(
    ("tokens", "score"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0), (5000, -1.0)],
)
def test_the_soft_limit_falls_evenly_over_its_zone(tokens, score):
    assert overlong("", [7] * tokens, limit=100, zone=20) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "tokens", "options", "score"),
    [
        ("a b", 2, {}, 1.0),
        ("", 0, {}, 0.0),
        ("a", 10, {"at_most": 10}, 1.0),
        ("a", 11, {"at_most": 10}, 0.0),
        ("a", 4, {"at_least": 5}, 0.0),
        ("a", 100, {"target": 100}, 1.0),
        ("a", 50, {"target": 100}, 0.5),
        ("a", 150, {"target": 100}, 0.5),
        ("a", 200, {"target": 100}, 0.0),
        ("a", 900, {"target": 100}, 0.0),
        ("a", 150, {"target": 100, "at_most": 120}, 0.0),
        ("one two\nthree", 9, {"target": 3, "unit": "words"}, 1.0),
        ("abc", 9, {"target": 6, "unit": "characters"}, 0.5),
        ("   ", 9, {"unit": "words"}, 0.0),
    ],
)
def test_the_length_lies_in_bounds_or_near_a_target(text, tokens, options, score):
    assert length(text, [7] * tokens, **options) == score


@pytest.mark.parametrize(
    ("text", "tokens", "options", "score"),
    [
        ("a", 1, {"discount": 0.5}, 0.5),
        ("a", 3, {"discount": 0.5}, 0.125),
        ("a", 3, {"discount": 0.5, "free": 2}, 0.5),
        ("a", 2, {"discount": 0.5, "free": 2}, 1.0),
        ("a", 10_000_000, {"discount": 0.5}, 0.0),
        ("a", 100, {"discount": 1.0}, 1.0),
        ("a b", 9, {"discount": 0.5, "unit": "words"}, 0.25),
        ("", 0, {}, 0.0),
        (" \n", 3, {}, 0.0),
    ],
)
def test_brevity_is_a_discount_for_each_unit(text, tokens, options, score):
    assert brevity(text, [7] * tokens, **options) == score


@pytest.mark.parametrize(
    ("text", "options", "score"),
    [
        ("", {}, 0.0),
        ("a b", {}, 0.0),
        ("a b c", {}, 0.0),
        ("a b c d e", {}, 0.0),
        ("a a a a", {}, -0.5),  # two 3-grams, one of them new
        ("a b c a b c", {}, -0.25),  # abc bca cab abc
        ("A b C a B c", {}, -0.25),
        ("a b a b a", {"n": 2}, -0.5),  # ab ba ab ba
        ("a a a a", {"n": 1}, -0.75),
        ("word " * 10_000, {}, -1.0 + 1 / 9_998),
    ],
)
def test_repetition_is_the_share_of_ngrams_seen_before(text, options, score):
    assert repetition(text, [], **options) == pytest.approx(score)


def test_repetition_can_be_counted_over_tokens():
    assert repetition("one", [1, 2, 3, 1, 2, 3], unit="tokens") == -0.25
