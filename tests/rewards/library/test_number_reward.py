from fractions import Fraction

import pytest

from muster.rewards.numbers_in_text import last_number
from muster.rewards.numeric import number

NO_NUMBER = "no number"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-3", -3),
        ("+7", 7),
        ("\u22123", -3),
        ("\uff0d3", -3),
        ("\u20133", -3),
        ("$-5", -5),
        ("-$5", -5),
        ("x=-3", -3),
        ("10-3", 3),
        ("3\u20135", 5),
        ("f(x)-3", 3),
        ("--3", 3),
        ("page-3", 3),
        ("\u00b13", NO_NUMBER),
        ("$29.00", 29),
        ("US$29", 29),
        (r"\$29", 29),
        ("€ 5", 5),
        ("5 €", 5),
        ("18%", 18),
        (r"18\%", 18),
        ("130,000", 130_000),
        ("1,234,567.5", Fraction(2_469_135, 2)),
        ("130{,}000", 130_000),
        (r"12\,345", 12_345),
        ("1 000 000", 1_000_000),
        ("1\u202f000", 1_000),
        ("1'234", 1_234),
        ("1_000", 1_000),
        ("12,34", 34),
        ("1,2,3", 3),
        ("1,234,5", 5),
        ("12345,678", 678),
        ("1, 2 and 3", 3),
        ("72 clips, altogether", 72),
        (",", NO_NUMBER),
        (".", NO_NUMBER),
        ("-", NO_NUMBER),
        ("", NO_NUMBER),
        ("18.0", 18),
        ("007", 7),
        (".5", Fraction(1, 2)),
        ("is...42", 42),
        ("It is 42.", 42),
        ("1.2.3", NO_NUMBER),
        ("12/05/2024", NO_NUMBER),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("3 / 4", Fraction(3, 4)),
        ("2 1/2", Fraction(5, 2)),
        ("3/0", None),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"\frac12", Fraction(1, 2)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        (r"\frac{3", 3),
        ("3e8", 300_000_000),
        ("2.5E-1", Fraction(1, 4)),
        ("3 × 10^8", 300_000_000),
        (r"3\times10^{8}", 300_000_000),
        ("10^{-3}", Fraction(1, 1000)),
        ("10^3 m^2", 1000),
        ("2^10", NO_NUMBER),
        ("1e999999999", None),
        ("9" * 301, None),
        ("9" * 300, int("9" * 300)),
        ("0x1F", NO_NUMBER),
        ("x2", NO_NUMBER),
        ("H2O", NO_NUMBER),
        ("5kg", 5),
        ("3:30", 30),
        ("٣٤", 34),
        ("４２", 42),
        ("答案是42。", 42),
        ("inf", NO_NUMBER),
        ("-Infinity", NO_NUMBER),
        ("NaN", NO_NUMBER),
        ("forty-two", NO_NUMBER),
        ("XLII", NO_NUMBER),
        ("42 " + "x" * 9_000, 42),
        ("42 " + "x2 " * 3_000, 42),
        ("-42 " + "x2 " * 490, -42),
    ],
)
def test_a_numeral_has_one_reading(text, value):
    found = last_number(text)
    assert (NO_NUMBER if found is None else found.value) == value


# completion, answer, score, score with strict
TABLE: list[tuple[str, object, float, float]] = [
    ("the answer is -3", "-3", 1.0, 0.0),
    ("3", "-3", 0.0, 0.0),
    ("+7", "7", 1.0, 0.0),
    ("−3", "-3", 1.0, 0.0),
    ("The total is 72 clips, altogether.", "72", 1.0, 0.0),
    ("$29.00", "29", 1.0, 0.0),
    ("130,000", "130000", 1.0, 0.0),
    ("18.0", "18", 1.0, 0.0),
    ("18%", "18", 1.0, 0.0),
    ("maybe 41 or 42 or 43", "42", 0.0, 0.0),
    (r"\boxed{42} " + "chatter 7 " * 50, "42", 1.0, 1.0),
    ("The answer is 42. " + "chatter 7 " * 50, "42", 1.0, 0.0),
    ("The answer is **$42**, found in 3 steps.", 42, 1.0, 0.0),
    (r"Answer: $\frac{1}{2}$ (from 2 halves)", 0.5, 1.0, 0.0),
    ("The answer is not 42 but 43", 42, 0.0, 0.0),
    ("#### 72", 72, 1.0, 1.0),
    ("<answer>72</answer>", 72, 1.0, 1.0),
    ("<answer>72", 72, 1.0, 0.0),
    (r"\boxed{72", 72, 1.0, 0.0),
    (r"\boxed{}", 72, 0.0, 0.0),
    (r"72 \boxed{}", 72, 0.0, 0.0),
    (r"\boxed{71} \boxed{72}", 72, 1.0, 1.0),
    (r"\boxed{72} \boxed{71}", 72, 0.0, 0.0),
    (r"\boxed{71, 72}", 72, 1.0, 0.0),
    (r"\boxed{71 or 72 or 73}", 72, 0.0, 0.0),
    (r"\boxed{x = 72}", 72, 1.0, 1.0),
    (r"\boxed{- 72}", -72, 1.0, 1.0),
    (r"\boxed{$72$}", 72, 1.0, 1.0),
    (r"\boxed{72\text{ cm}^2}", 72, 1.0, 1.0),
    (r"\boxed{\text{72}}", 72, 1.0, 1.0),
    (r"\boxed{\frac{1}{2}}", "1/2", 1.0, 1.0),
    (r"\boxed{\$1{,}000}", "1,000", 1.0, 1.0),
    (r"\boxed{nan}", 72, 0.0, 0.0),
    (r"\boxed{1/0}", 72, 0.0, 0.0),
    (r"\boxed{" + "9" * 10_000 + "}", 9, 0.0, 0.0),
    (r"\boxed{10^{10^{10}}}", 10, 0.0, 0.0),
    (r"\boxed{1e999999999}", 1, 0.0, 0.0),
    (r"\boxed{__import__('os').system('touch PWN')}", 72, 0.0, 0.0),
    ("<think>72</think>", 72, 0.0, 0.0),
    (r"<think>\boxed{72}", 72, 0.0, 0.0),
    (r"<think>71</think>\boxed{72}", 72, 1.0, 1.0),
    ("", 72, 0.0, 0.0),
    ("seventy-two", 72, 0.0, 0.0),
    ("72 1", 72, 0.0, 0.0),
    (r"\boxed{72}", "She has 48 + 24 = 72 clips.\n#### 72", 1.0, 1.0),
    (r"\boxed{72}", "72 clips", 1.0, 1.0),
    (r"\boxed{0.1}", 0.1, 1.0, 1.0),
    (r"\boxed{0.3333}", "1/3", 0.0, 0.0),
    (r"\boxed{\ud800 72}", 72, 1.0, 1.0),
]


@pytest.mark.parametrize(("completion", "answer", "score", "strict_score"), TABLE)
def test_each_numeric_answer_has_one_right_score(completion, answer, score, strict_score):
    assert number(completion, answer) == score
    assert number(completion, answer, strict=True) == strict_score


@pytest.mark.parametrize(
    ("completion", "answer", "options", "score"),
    [
        ("18%", "0.18", {}, 0.0),
        ("18%", "0.18", {"percent": "hundredth"}, 1.0),
        ("0.18", "18%", {"percent": "hundredth"}, 1.0),
        ("18", "18%", {"percent": "hundredth"}, 0.0),
        ("1.234,5", "1.234,5", {"decimal_comma": True}, 1.0),
        ("1.234,5", 1234.5, {"decimal_comma": True}, 1.0),
        ("1,5", 1.5, {"decimal_comma": True}, 1.0),
        ("1.5", 15, {"decimal_comma": True}, 0.0),
        ("0.3333", "1/3", {"tolerance": 0.001}, 1.0),
        ("0.33", "1/3", {"tolerance": 0.001}, 0.0),
        ("0.001", "0", {"tolerance": 0.1}, 0.0),
        ("-100.5", "-100", {"tolerance": 0.01}, 1.0),
    ],
)
def test_options_say_what_equal_means(completion, answer, options, score):
    assert number(completion, answer, **options) == score


@pytest.mark.parametrize(
    ("completion", "right", "wrong"),
    [
        # A calculation is what it comes to; where that isn't said, nothing.
        ("The answer is 48 + 24 = 72.", 72, 48),
        ("The answer is 48*2 - 24 = 96 - 24 = 72, since 24 = 48/2.", 72, 48),
        ("Answer: $5 \\times 3$ = $15$", 15, 5),
        ("The answer is 48 + 24.", None, 48),
        ("The answer is 10 - 3", None, 10),
        (r"\boxed{48 + 24}", None, 24),
        (r"\boxed{48 - 24}", None, -24),
        ("It is 72 = 48 + 24", None, 24),
        ("2**10", None, 10),
        ("2 ** 10", None, 10),
        ("The answer is 3 * 4", None, 3),
        # Stars around what is bold or italic calculate nothing.
        ("The answer is **42** (6 \u00d7 7).", 42, 6),
        ("The answer is **$18** (9 eggs \u00d7 $2)", 18, 9),
        ("Total (in dollars) **42**", 42, 1),
        ("1) *42*", 42, 1),
        ("**Step 2** 42", 42, 2),
        ("The answer is 48 + 24 = **72**.", 72, 48),
        (r"The answer is 48 + 24 = \(72\)", 72, 48),
        ("The answer is 3 - 10 = _-7_", -7, 3),
        ("5 \u00d7 72", None, 72),
        ("10 minus 3", None, 3),
        # A minus that stands apart is one, unless it is a dash.
        ("The answer is - 3", -3, 3),
        ("The answer is: negative 3, or so", -3, 3),
        ("x = - 3", -3, 3),
        ("x = -(3)", -3, 3),
        ("It was minus 3 degrees", -3, 3),
        (r"\boxed{x = -\left(3\right)}", -3, 3),
        ("The answer is:\n- 72 clips", 72, -72),
        ("In all:\n- 72 clips", 72, -72),
        # Ranges, times, and answers that leave the choice.
        ("between 3-5", None, 5),
        ("The answer is 3\u20135 days", None, 3),
        ("at 3:30", None, 30),
        ("The answer is 72 or 73", None, 72),
        ("It is 72 or 73", None, 73),
        # Roots, powers, and multiples of what isn't written as a number.
        (r"\boxed{\sqrt{72}}", None, 72),
        (r"\boxed{\sqrt[3]{72}}", None, 72),
        ("\u221a72", None, 72),
        (r"\boxed{\frac{\sqrt{3}}{2}}", None, 2),
        (r"\boxed{\frac{\pi}{4}}", None, 4),
        (r"\boxed{72\pi}", None, 72),
        ("72\u03c0", None, 72),
        ("5\u00b2", None, 5),
        (r"0.\overline{3}", None, 3),
        (r"\boxed{3 + 4i}", None, 4),
        ("2x", None, 2),
        # What only looks like a part of something.
        ("**72**", 72, None),
        ("Step 2: **72** clips", 72, 2),
        ("The answer is **72** (see step 2)", 72, 2),
        (r"so \textbf{72}", 72, None),
        ("5 \u00d7 72 = 360", 360, 72),
        (r"\sqrt{49} = 7", 7, 49),
        ("72 or more", 72, None),
        ("a 72-hour trip", 72, None),
        ("5 cm\u00b2", 5, None),
    ],
)
def test_a_number_that_is_a_part_of_something_larger_is_no_answer(completion, right, wrong):
    assert right is None or number(completion, right) == 1
    assert wrong is None or number(completion, wrong) == 0


@pytest.mark.parametrize("content", [r"\sqrt{72}", r"72\pi", "72\u00b2", r"\frac{\pi}{72}", "x72"])
def test_a_mark_around_a_part_is_no_answer_with_strict_either(content):
    assert number(rf"\boxed{{{content}}}", 72, strict=True) == 0


def test_a_row_without_an_answer_is_not_judged():
    assert number("72", None) is None
    assert number("72", " ") is None


@pytest.mark.parametrize("answer", ["none", "x = y", "3-5", r"\sqrt{2}", float("nan"), float("inf"), True])
def test_an_answer_of_the_data_that_is_no_number_is_an_error_not_a_zero(answer):
    with pytest.raises(ValueError, match="in which no number stands alone"):
        number("72", answer)
