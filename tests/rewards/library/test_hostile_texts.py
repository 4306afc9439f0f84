"""No completion makes a reward of the library raise, wait, or give more than it should."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError
from muster.records import Completion, GradingRequest, Sample
from muster.rewards import grade, load_rewards
from muster.rewards.library import Builtin, check_installed

MAX_S = 0.1
"""Processor time on a million characters: half of it on a free core."""

# What each reward is asked with: a row that it can judge, and the range of its scores.
ASKED: dict[str, tuple[dict[str, object], dict[str, object], float, float]] = {
    "brevity": ({}, {}, 0.0, 1.0),
    "char_count": ({}, {}, 0.0, 1e6),
    "contains_answer": ({"whole_words": True, "ignore_case": True}, {"answer": "3.5"}, 0.0, 1.0),
    "exact": ({"marked": True, "ignore_case": True}, {"answer": "Paris"}, 0.0, 1.0),
    "format": ({}, {}, 0.0, 1.0),
    "json_extraction": ({}, {}, 0.0, 1.0),
    "json_schema": ({"schema": {"type": "object"}, "fenced": True}, {}, 0.0, 1.0),
    "language": ({}, {}, 0.0, 1.0),
    "length": ({"unit": "words"}, {}, 0.0, 1.0),
    "math": ({"strict": False}, {"answer": "x+1"}, 0.0, 1.0),
    "number": ({}, {"answer": "-1,234.5"}, 0.0, 1.0),
    "overlong": ({"limit": 10, "zone": 5}, {}, -1.0, 0.0),
    "regex": ({"pattern": r"\bcolou?r\b"}, {}, 0.0, 1.0),
    "repetition": ({}, {}, -1.0, 0.0),
    "sentiment": ({}, {}, -1.0, 1.0),
}

PIECES = [
    "9", "-", "\u2212", ",", ".", "/", "%", "$", "^", "!", "{", "}", "[", "]", '"', "\\", ":", " ", "\n", "<",
    "\\boxed{", "\\frac{", "<think>", "</think>", "<answer>", "</answer>", "#### ", "answer is ", "10^", "e9",
    "```json\n", '{"a": ', "\\text{", "x", "\0", "\ud800", "\u0663", "\u202e", "\x1b[2J", "NaN", "**",
    "good ",
]  # fmt: skip

HUGE = {
    **{piece: piece * (1_000_000 // len(piece)) for piece in PIECES},
    "numbers": "9 " * 500_000,
    "groups": "111," * 250_000,
    "boxes": "\\boxed{1}" * 110_000,
    "open box": "\\boxed{" + "x" * 1_000_000,
    "one box": "\\boxed{" + "1" * 1_000_000 + "}",
    "one tag": "<answer>" + "1 " * 500_000 + "</answer>",
    "escapes": '\\"' * 500_000,
    "lines": "#### 1\n" * 140_000,
    "words": "".join(f"w{index} " for index in range(145_000)),
    "formula": "$x$" * 330_000,
    "powers": "\\boxed{" + "x^" * 500_000 + "}",
    "fence": "```json\n" + "[" * 1_000_000 + "\n```",
}


def graded(name: str, text: str):
    options, columns, _, _ = ASKED[name]
    request = GradingRequest(
        sample=Sample(
            id="0", messages=({"role": "user", "content": "Which one, Paris or 3.5?"},), columns=columns
        ),
        prompt_text="",
        completion=Completion(ids=(), sampler_logprobs=(), finish_reason="stop", version=0),
        text=text,
        plain_text=text,
    )
    [score] = grade([request], load_rewards(name, options={name: options}))
    return score


@pytest.mark.parametrize("name", ASKED)
@given(
    text=st.one_of(
        st.text(st.characters(codec=None), max_size=200),
        st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    )
)
def test_any_text_gets_a_score_in_range(name, text):
    _, _, low, high = ASKED[name]
    score = graded(name, text)
    assert score.failures == {}
    assert score.value is not None
    assert low <= score.value <= high


@pytest.mark.parametrize("name", ASKED)
def test_a_million_characters_take_no_time(name):
    graded(name, "warm")
    slow = {}
    for kind, text in HUGE.items():
        started = time.thread_time()
        score = graded(name, text)
        spent = time.thread_time() - started
        assert score.failures == {}, kind
        # A machine that is busy with others may lengthen one call, but not the same one twice.
        if spent > MAX_S:
            started = time.thread_time()
            graded(name, text)
            spent = min(spent, time.thread_time() - started)
        if spent > MAX_S:
            slow[kind] = round(spent, 3)
    assert slow == {}


@pytest.mark.parametrize("name", ["contains_answer", "exact", "format", "json_schema", "math", "number"])
@pytest.mark.parametrize("text", ["", " ", "Which one, Paris or 3.5?", "I don't know.", "1" * 1_000_000])
def test_saying_nothing_earns_no_full_marks(name, text):
    if name == "contains_answer" and "3.5" in text:
        return  # the prompt names the answer: the text does contain it
    value = graded(name, text).value
    assert value is not None
    assert value < 1.0


def test_a_missing_extra_is_named_before_the_run():
    builtin = Builtin(function=print, extra="math", imports=("math_verify_that_is_not_there",))
    with pytest.raises(ConfigError, match=r"needs math_verify_that_is_not_there.*muster-rl\[math\]"):
        check_installed("math", builtin)
