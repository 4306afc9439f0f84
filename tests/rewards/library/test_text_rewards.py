import pytest

from muster.errors import ConfigError
from muster.rewards import load_rewards
from muster.rewards.answers import after_thinking, marked_answer
from muster.rewards.texts import contains_answer, exact, regex


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        ("It is Paris.", "Paris", 1.0),
        ("Parisian", "Paris", 0.0),
        ("(Paris)", "Paris", 1.0),
        ("Paris_2", "Paris", 0.0),
        ("It is 13", "3", 0.0),
        ("It is 3.5", "3", 0.0),
        ("It is 0.3", "3", 0.0),
        ("It is 3,000", "3", 0.0),
        ("It is -3", "3", 0.0),
        ("It is −3", "3", 0.0),
        ("It is -3", "-3", 1.0),
        ("It is 3.", "3", 1.0),
        ("1, 3, 5", "3", 1.0),
        ("C++ it is", "C++", 1.0),
        ("a.c", "a.c", 1.0),
        ("abc", "a.c", 0.0),
        ("naïveté", "naïve", 0.0),
    ],
)
def test_whole_words_are_not_parts_of_longer_ones(completion, answer, score):
    assert contains_answer(completion, answer, whole_words=True) == score


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        ("I say yes.", ["yes", "no"], 1.0),
        ("I say maybe.", ["yes", "no"], 0.0),
        ("I say maybe.", [], None),
        ("I say maybe.", ["", None], None),
        ("It is 2", [1, 2.0], 1.0),
    ],
)
def test_of_a_list_of_answers_any_one_will_do(completion, answer, score):
    assert contains_answer(completion, answer) == score


@pytest.mark.parametrize(
    ("completion", "answer", "options", "score"),
    [
        ("Paris", "Paris", {}, 1.0),
        ("  Paris \n", "Paris", {}, 1.0),
        ("New\n  York", "New York", {}, 1.0),
        ("Paris.", "Paris", {}, 0.0),
        ("It is Paris", "Paris", {}, 0.0),
        ("paris", "Paris", {}, 0.0),
        ("paris", "Paris", {"ignore_case": True}, 1.0),
        ("STRASSE", "straße", {"ignore_case": True}, 1.0),
        ("cafe\u0301", "caf\u00e9", {}, 1.0),
        ("12", 12.0, {}, 1.0),
        ("true", True, {}, 1.0),
        ("", "x", {}, 0.0),
        ("", "", {}, None),
        ("x", None, {}, None),
        ("nan", float("nan"), {}, 1.0),
        ("a\0", "a", {}, 0.0),
        (r"\boxed{C} and then \boxed{\text{E}}", "E", {"marked": True}, 1.0),
        (r"\boxed{E} and then \boxed{C}", "E", {"marked": True}, 0.0),
        ("<answer>Paris</answer> I am sure.", "Paris", {"marked": True}, 1.0),
        ("<answer>Paris", "Paris", {"marked": True}, 0.0),
        ("Paris", "Paris", {"marked": True}, 0.0),
        ("<think>\\boxed{Paris}</think> Rome", "Paris", {"marked": True}, 0.0),
        ("<answer>B</answer>", ["A", "B"], {"marked": True}, 1.0),
        ("$A$", "A", {}, 0.0),
        ("\\boxed{$A$}", "A", {"marked": True}, 1.0),
    ],
)
def test_the_completion_is_exactly_the_answer(completion, answer, options, score):
    assert exact(completion, answer, **options) == score


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("no mark", None),
        (r"\boxed{}", ""),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {a} \fbox{ b }", "b"),
        (r"\boxed{a} \boxed{b", "a"),
        (r"\boxed{b \boxed{a}", "a"),
        (r"\boxed{a\}", None),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"} } \boxed{a}}", "a"),
        (r"\\\boxed{a}", "a"),
        ("<answer>a</answer><answer>b", "a"),
        ("</answer>a<answer>", None),
        ("<answer>x<answer>a</answer>", "a"),
        ("<ANSWER>a</ANSWER>", None),
        ("<answer>a</answer> x </answer>", "a"),
        (r"\boxed{\boxed{a}}", "a"),
        (r"\\boxed{a}", None),
        (r"\boxed{" + "x" * 20_000 + "}", None),
        ("work\n#### 72\n", "72"),
        ("work #### 72", None),
        ("##### 72", None),
        (r"#### 72" + "\n" + r"\boxed{73}", "73"),
        (r"\boxed{73}" + "\n#### 72", "72"),
        (r"\boxed{" * 1000 + "a" + "}" * 1000, "a"),
        (r"\boxed{" * 1000 + "a", None),
        ("#" * 1000, None),
    ],
)
def test_the_last_complete_mark_is_the_answer(text, answer):
    assert marked_answer(text) == answer


@pytest.mark.parametrize(
    ("completion", "rest"),
    [
        ("a", "a"),
        ("<think>a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("<think>a", ""),
        ("a<think>b", "a"),
    ],
)
def test_thinking_is_no_answer(completion, rest):
    assert after_thinking(completion) == rest


@pytest.mark.parametrize(
    ("completion", "pattern", "whole", "score"),
    [
        ("abc 12", r"\d+", False, 1.0),
        ("abc", r"\d+", False, 0.0),
        ("12", r"\d+", True, 1.0),
        ("12 ", r"\d+", True, 0.0),
        ("A\nb", r"(?si)a.B", True, 1.0),
        ("7</ans>", r"<ans>7</ans>", False, 0.0),
        ("<ans>7</ans>", r"<ans>\d</ans>$", False, 1.0),
        ("\ud800", r".", True, 1.0),
    ],
)
def test_the_pattern_is_found_or_matches_all(completion, pattern, whole, score):
    assert regex(completion, pattern=pattern, whole=whole) == score


@pytest.mark.parametrize("pattern", ["(", "*a", ""])
def test_a_pattern_that_is_none_is_refused_before_the_run(pattern):
    with pytest.raises(ConfigError, match=r"reward\.options\.regex\.pattern"):
        load_rewards("regex", options={"regex": {"pattern": pattern}})
