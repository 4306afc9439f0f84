import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.records import Completion, GradingRequest, Sample
from muster.rewards import char_count, contains_answer, grade, json_extraction, load_rewards
from muster.rewards.json_extraction import LEVELS

TEXT = 'Maria Lopez, 41, a nurse from Lisbon, paid 3.50 euros for "tea" in 2021. It is true. STRAßE.'


@pytest.mark.parametrize(
    ("completion", "options", "count"),
    [
        ("", {}, 0.0),
        ("a. b. c", {}, 2.0),
        ("....", {}, 4.0),
        ("a.b", {"over": "sample"}, 3.0),
        ("a,b", {"character": ","}, 1.0),
        ("。.", {}, 1.0),
    ],
)
def test_characters_are_counted(completion, options, count):
    assert char_count(completion, "One. Two.", **options) == count


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        ("The answer is Paris.", "Paris", 1.0),
        ("the answer is paris", "Paris", 0.0),
        ("Par", "Paris", 0.0),
        ("Paris", "  Paris\n", 1.0),
        ("It is 12", 12, 1.0),
        ("It is 12", 12.0, 1.0),
        ("It is 1.5", 1.5, 1.0),
        ("It is -3", "-3", 1.0),
        ("it is true", True, 1.0),
        ("anything", "", None),
        ("anything", "  ", None),
        ("anything", None, None),
        ("", "x", 0.0),
        ("\ud800", "x", 0.0),
        ("a\0b", "b", 1.0),
    ],
)
def test_the_answer_is_looked_for_in_the_completion(completion, answer, score):
    assert contains_answer(completion, answer) == score


def test_the_answer_can_be_looked_for_in_any_case():
    assert contains_answer("PARIS", "Paris", ignore_case=True) == 1.0


def test_an_answer_that_is_no_text_is_an_error_not_a_zero():
    with pytest.raises(TypeError, match="holds dict"):
        contains_answer("a", {"a": 1})


def nested(depth: int) -> str:
    return '{"a": "tea", "b": ' + "[" * depth + "]" * depth + "}"


# completion, score as MISSION has it, score with strict
TABLE: list[tuple[str, float, float]] = [
    ("", 0.0, 0.0),
    ("Maria Lopez", 0.0, 0.0),
    ('```json\n{"name": "Maria Lopez", "age": 41}\n```', 0.0, 0.0),
    ('Here it is: {"name": "Maria Lopez", "age": 41}', 0.0, 0.0),
    ('{"name": "Maria Lopez", "age": 41} Done.', 0.0, 0.0),
    ('{"name": "Maria Lopez", "age": 41', 0.0, 0.0),
    ("{'name': 'Maria Lopez', 'age': 41}", 0.0, 0.0),
    ('{"name": "Maria Lopez", "age": 41,}', 0.0, 0.0),
    ('{"a": NaN, "b": 41}', 0.0, 0.0),
    ('{"a": Infinity, "b": 41}', 0.0, 0.0),
    ('{"a": "tea\n", "b": 41}', 0.0, 0.0),
    ('\ufeff{"a": "tea", "b": 41}', 0.0, 0.0),
    ('{"a": 041, "b": "tea"}', 0.0, 0.0),
    ("[" * 100_000, 0.0, 0.0),
    ("[" * 100_000 + "]" * 100_000, 0.0, 0.0),
    (nested(50), 0.0, 0.0),
    ('{"a":' * 100_000, 0.0, 0.0),
    ("null", 0.2, 0.2),
    ("41", 0.2, 0.2),
    ("9" * 10_000, 0.2, 0.2),
    ('"tea"', 0.2, 0.2),
    ('["Maria Lopez", 41]', 0.2, 0.2),
    ('[{"name": "Maria Lopez", "age": 41}]', 0.2, 0.2),
    ("{}", 0.3, 0.3),
    ('{"name": "Maria Lopez"}', 0.3, 0.3),
    ('{"name": "nobody"}', 0.3, 0.3),
    ('{"a": {"name": "Maria Lopez", "age": 41}}', 0.3, 0.3),
    ('{"name": "Maria", "name": "Lopez"}', 0.5, 0.5),
    ('{"name": "Maria", "age": 41, "\\u006eame": "Maria"}', 0.5, 0.5),
    ('{"name": "Maria", "Name": "Lopez"}', 1.0, 0.5),
    ('{"name": "Maria", " name": "Lopez"}', 1.0, 0.5),
    ('{"name": "Maria Lopez", "city": "Porto"}', 0.7, 0.7),
    ('{"name": "Maria Lopez", "age": 42}', 0.7, 0.7),
    ('{"name": "Maria Lopez", "price": 3.5}', 1.0, 0.7),
    ('{"name": "Maria Lopez", "age": ' + "1" * 10_000 + "}", 0.7, 0.7),
    ('{"a": 1e999, "b": "tea"}', 0.7, 0.7),
    ('{"a": "\\ud800", "b": "tea"}', 0.7, 0.7),
    ('{"a": "tea\\u0000", "b": 41}', 0.7, 0.7),
    (nested(49), 0.7, 0.7),
    ('{"a": ["Maria Lopez"], "b": "tea"}', 0.7, 0.7),
    ('{"a": {"b": "tea", "b": "tea"}, "c": "tea"}', 0.7, 0.7),
    ('{"a": [], "b": {}}', 0.7, 0.7),
    ('{"a": null, "b": "tea"}', 0.7, 0.7),
    ('{"a": false, "b": "tea"}', 0.7, 0.7),
    ('{"a": true, "b": "tea"}', 1.0, 0.7),
    ('{"a": "", "b": ""}', 1.0, 0.7),
    ('{"a": " ", "b": ","}', 1.0, 0.7),
    ('{"": "tea", "b": 41}', 1.0, 0.7),
    ('{"a": "a", "b": "e"}', 1.0, 0.7),
    ('{"a": "Lis", "b": "tea"}', 1.0, 0.7),
    ('{"a": "tea", "b": "Tea"}', 1.0, 0.7),
    ('{"a": 41, "b": "41"}', 1.0, 0.7),
    (json.dumps({"a": TEXT, "b": "tea"}), 1.0, 0.7),
    ('{"name": "Maria Lopez", "age": 41}', 1.0, 1.0),
    ('  \n{"name": "maria LOPEZ", "age": "41"}\n ', 1.0, 1.0),
    ('{"price": 3.50, "year": 2021, "job": "nurse"}', 1.0, 1.0),
    ('{"street": "strasse", "b": "\\"tea\\""}', 1.0, 1.0),
    ('{"a{[": "tea", "b": "nurse"}', 1.0, 1.0),
]


@pytest.mark.parametrize(("completion", "score", "strict_score"), TABLE)
def test_each_answer_has_one_right_score(completion, score, strict_score):
    assert json_extraction(completion, TEXT, {}) == score
    assert json_extraction(completion, TEXT, {}, strict=True) == strict_score


def graded(prompt: str, options: dict[str, object], **columns: object) -> float | None:
    messages = ({"role": "user", "content": "earlier nobody"}, {"role": "user", "content": prompt})
    request = GradingRequest(
        sample=Sample(id="0", messages=messages, columns=columns),
        prompt_text="<s>nobody",
        completion=Completion(ids=(1,), sampler_logprobs=(0.0,), finish_reason="stop", version=0),
        text='{"a": "tea", "b": 41}',
        plain_text="",
    )
    [score] = grade([request], load_rewards("json_extraction", options={"json_extraction": options}))
    assert not score.failures
    return score.value


def test_the_text_is_the_last_user_message_or_a_named_column():
    assert graded("tea at 41", {}) == 1.0
    assert graded("nothing", {}) == 0.7
    assert graded("nothing", {}, text="tea at 41") == 0.7
    assert graded("nothing", {"text": "text"}, text="tea at 41") == 1.0
    assert graded("nothing", {"text": "source"}, source="tea at 41", text="x") == 1.0


def test_a_row_without_a_text_is_an_abstention():
    assert graded("nothing", {"text": "source"}, source=None) is None
    assert graded("nothing", {"text": "source"}, source=" ") is None


def test_levels_of_the_built_in_rewards():
    levels = {
        reward.name: reward.levels
        for reward in load_rewards(["char_count", "contains_answer", "json_extraction"])
    }
    assert levels == {
        "char_count": (),
        "contains_answer": (0.0, 1.0),
        "json_extraction": (0.0, 0.2, 0.3, 0.5, 0.7, 1.0),
    }


@given(st.one_of(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps)))
@settings(max_examples=200, deadline=None)
def test_any_text_gets_one_of_the_levels_and_strict_never_gives_more(completion):
    score = json_extraction(completion, TEXT, {})
    assert score in LEVELS
    strict_score = json_extraction(completion, TEXT, {}, strict=True)
    assert score is not None
    assert strict_score is not None
    assert strict_score <= score
