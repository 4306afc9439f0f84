import json
import warnings

import pytest

from muster.errors import ConfigError
from muster.rewards import load_rewards
from muster.rewards.formats import tagged
from muster.rewards.json_schema import json_schema

GOOD = "<think>so</think>\n<answer>42</answer>"


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (GOOD, 1.0),
        (f"\n {GOOD}\n", 1.0),
        ("<think>a < b & <b>bold</b></think><answer>{}</answer>", 1.0),
        ("<think>so</think><answer></answer>", 0.0),
        ("<think> \n</think><answer>42</answer>", 0.0),
        ("<answer>42</answer><think>so</think>", 0.0),
        ("<think>so<answer>42</answer></think>", 0.0),
        ("<think>so</think>", 0.0),
        ("<answer>42</answer>", 0.0),
        ("<think>so</think><answer>42", 0.0),
        ("<think>so<answer>42</answer>", 0.0),
        ("<think>so</think> and <answer>42</answer>", 0.0),
        (f"Sure! {GOOD}", 0.0),
        (f"{GOOD} Done.", 0.0),
        (GOOD + GOOD, 0.0),
        (f"{GOOD}<answer>43</answer>", 0.0),
        ("<think>I write <answer> now</think><answer>42</answer>", 0.0),
        ("<think>so</think></think><answer>42</answer>", 0.0),
        ("<Think>so</Think><answer>42</answer>", 0.0),
        ('<think id="1">so</think><answer>42</answer>', 0.0),
        ("<think >so</think><answer>42</answer>", 0.0),
        ("&lt;think&gt;so&lt;/think&gt;<answer>42</answer>", 0.0),
        ("<think>\ud800</think><answer>\0</answer>", 1.0),
        ("<think></think><answer></answer>" * 1000, 0.0),
        ("", 0.0),
    ],
)
def test_the_tags_come_in_order_once_and_hold_something(completion, score):
    assert tagged(completion) == score


def test_other_tags_and_an_opened_first_one():
    assert tagged("<plan>a</plan><code>b</code><test>c</test>", tags=("plan", "code", "test")) == 1.0
    assert tagged("<plan>a</plan><test>c</test><code>b</code>", tags=("plan", "code", "test")) == 0.0
    assert tagged("so</think><answer>42</answer>", opened=True) == 1.0
    assert tagged(GOOD, opened=True) == 0.0
    assert tagged("</think><answer>42</answer>", opened=True) == 0.0


@pytest.mark.parametrize("tags", [["<think>"], ["a", "a"], [], [""], ["a b"]])
def test_tags_that_are_none_are_refused(tags):
    with pytest.raises(ConfigError, match=r"reward\.options\.format\.tags"):
        load_rewards("format", options={"format": {"tags": tags}})


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ('{"name": "Ann", "age": 41}', 1.0),
        (' {"age": 41.0, "name": "Ann"}\n', 1.0),
        ('{"name": "Ann"}', 0.5),
        ('{"name": "Ann", "age": "41"}', 0.5),
        ('{"name": "Ann", "age": true}', 0.5),
        ('{"name": "Ann", "age": -1}', 0.5),
        ('{"name": "", "age": 41}', 0.5),
        ('{"name": "Ann", "age": 41, "x": 1}', 0.5),
        ("null", 0.5),
        ("[]", 0.5),
        ("{}", 0.5),
        ('{"name": "Ann", "age": ' + "9" * 1000 + "}", 1.0),
        ('{"name": "Ann", "age": ' + "9" * 5000 + "}", 0.0),
        ('{"name": "Ann", "age": 1e999}', 0.0),
        ('{"name": "Ann", "age": NaN}', 0.0),
        ('{"name": "Ann", "age": Infinity}', 0.0),
        ('{"name": "Ann", "name": "Ann", "age": 41}', 0.0),
        ("{'name': 'Ann', 'age': 41}", 0.0),
        ('{"name": "Ann", "age": 41,}', 0.0),
        ('{"name": "Ann", "age": 41', 0.0),
        ('Here: {"name": "Ann", "age": 41}', 0.0),
        ('```json\n{"name": "Ann", "age": 41}\n```', 0.0),
        ('{"name": "\\ud800", "age": 41}', 1.0),
        ("[" * 100_000, 0.0),
        ("[" * 60 + "]" * 60, 0.0),
        ("[" + "1," * 100_000 + "1]", 0.0),
        ('{"name": "' + "x" * 300_000 + '", "age": 41}', 0.0),
        ("", 0.0),
        ("\0", 0.0),
    ],
)
def test_json_is_held_against_the_schema(completion, score):
    assert json_schema(completion, {}, schema=PERSON) == score


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ('```json\n{"name": "Ann", "age": 41}\n```', 1.0),
        ('  ```\n{"name": "Ann", "age": 41}\n```  \n', 1.0),
        ('{"name": "Ann", "age": 41}', 1.0),
        ('```json\n{"name": "Ann", "age": 41}', 0.0),
        ('```python\n{"name": "Ann", "age": 41}\n```', 0.0),
        ('Here:\n```json\n{"name": "Ann", "age": 41}\n```', 0.0),
    ],
)
def test_one_fence_around_all_of_it_can_be_allowed(completion, score):
    assert json_schema(completion, {}, schema=PERSON, fenced=True) == score


def test_the_schema_comes_from_a_file_or_from_the_row(tmp_path, score_of):
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    good = '{"name": "Ann", "age": 41}'
    assert score_of("json_schema", good, {"schema": "person.json"}).value == 1.0
    assert score_of("json_schema", good, {"column": "wanted"}, wanted=PERSON).value == 1.0
    assert score_of("json_schema", good, {"column": "wanted"}, wanted=json.dumps(PERSON)).value == 1.0
    assert score_of("json_schema", "3", {"column": "wanted"}, wanted='{"type": "integer"}').value == 1.0
    assert score_of("json_schema", "3", {"column": "wanted"}, wanted=None).is_abstention
    assert score_of("json_schema", "3", {"column": "wanted"}, wanted="{").is_failure
    assert score_of("json_schema", "3").is_failure


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objct"}, "no JSON Schema"),
        ({"properties": []}, "no JSON Schema"),
        ("absent.json", "names no file"),
        (3, "Input should be"),
    ],
)
def test_a_schema_that_is_none_is_refused_before_the_run(schema, reason):
    with pytest.raises(ConfigError, match=reason):
        load_rewards("json_schema", options={"json_schema": {"schema": schema}})


def test_no_reference_is_fetched():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Exception, match=r"https://example\.invalid"):
            json_schema("1", {}, schema={"$ref": "https://example.invalid/schema.json"})


def test_a_schema_may_refer_to_itself():
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": False}
    assert json_schema('{"child": {"child": {}}}', {}, schema=tree) == 1.0
    assert json_schema('{"child": {"chld": {}}}', {}, schema=tree) == 0.5
