"""Rows with answers: what is read of them, which tokens are learned, and what is refused, row by row."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from muster.data import EncodedAnswer, encode_answers, encode_prompts, load_answers, load_samples
from muster.errors import ConfigError, DataError
from tiny import END, TEMPLATE, ids_of, tiny_tokenizer

STOPS = frozenset({2})
"""What the tiny models stop at: the end of a turn."""


def written(folder: Path, rows: Sequence[object]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def encoded(path: Path, **options) -> list[EncodedAnswer]:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = options.pop("template", TEMPLATE)
    chosen = {"stop_ids": STOPS, "max_tokens": 200, "source": str(path), **options}
    raw = chosen.pop("raw", False)
    return list(encode_answers(load_answers(path, raw=raw), tokenizer, **chosen).answers)


def learned(answer: EncodedAnswer) -> str:
    """The learned tokens as text, `|` between stretches."""
    tokenizer, text, before = tiny_tokenizer(), "", False
    for token, counts in zip(answer.answer_ids, answer.mask, strict=True):
        if counts:
            text += ("" if before or not text else "|") + str(tokenizer.decode([token]))
        before = counts
    return text


def test_a_pair_starts_where_sampling_starts_and_ends_where_sampling_stops(tmp_path: Path):
    path = written(tmp_path, [{"prompt": " 1+1? ", "completion": "two", "answer": 2}])
    [answer] = encoded(path)
    [prompt] = encode_prompts(load_samples(path), tiny_tokenizer(), max_prompt_tokens=200).prompts
    assert (answer.ids, answer.text) == (prompt.ids, prompt.text)
    assert answer.answer_ids == (*ids_of("two"), 2)
    assert answer.mask == (True,) * 4
    assert dict(answer.sample.columns) == {"answer": 2}


def test_every_answer_of_a_conversation_is_learned_and_nothing_between(tmp_path: Path):
    turns = [
        ("system", "be brief"),
        ("user", "one?"),
        ("assistant", "1"),
        ("user", "two?"),
        ("assistant", "22"),
    ]
    messages = [{"role": role, "content": text} for role, text in turns]
    [answer] = encoded(written(tmp_path, [{"messages": messages, "topic": "sums"}]))
    tokenizer = tiny_tokenizer()
    assert learned(answer) == f"1{END}|22{END}"
    # Prompt and answers together are the conversation as the template has it, up to the last end of a turn.
    whole = str(tokenizer.apply_chat_template(messages, tokenize=False)).removesuffix("\n")
    assert (*answer.ids, *answer.answer_ids) == ids_of(whole)
    # What the second answer follows is what sampling would be asked to continue.
    asked = tokenizer.apply_chat_template(messages[:4], tokenize=False, add_generation_prompt=True)
    assert (*answer.ids, *answer.answer_ids[: -len(ids_of("22")) - 1]) == ids_of(str(asked))
    assert [message["role"] for message in answer.sample.messages] == ["system", "user"]


def test_an_answer_may_be_a_list_of_messages_as_trl_has_it(tmp_path: Path):
    prompt = [{"role": "user", "content": "hi"}]
    row = {"prompt": prompt, "completion": [{"role": "assistant", "content": "yo"}]}
    [answer] = encoded(written(tmp_path, [row]))
    assert learned(answer) == f"yo{END}"


def test_a_token_that_could_span_the_boundary_is_never_made(tmp_path: Path):
    [answer] = encoded(written(tmp_path, [{"prompt": "q", "completion": "\n\nso"}]))
    assert answer.text.endswith("assistant\n")
    assert answer.answer_ids[:2] == ids_of("\n\n")


def test_a_raw_answer_stays_as_it_is_and_gets_the_end_token(tmp_path: Path):
    [answer] = encoded(written(tmp_path, [{"prompt": "This is", "completion": " good "}]), raw=True)
    assert answer.ids == (0, *ids_of("This is"))
    assert answer.answer_ids == (*ids_of(" good "), 2)


BAD_PAIRS = [
    ({"prompt": "a", "completion": ""}, "line 2: the answer (column 'completion') is empty. Fill it in"),
    ({"prompt": "a", "completion": "  "}, "line 2: the answer (column 'completion') is empty"),
    ({"prompt": "a", "completion": None}, "line 2: the answer (column 'completion') is empty"),
    ({"prompt": "a", "completion": 7}, "column 'completion' holds a number; text or a list of messages"),
    ({"prompt": "a"}, "line 2: has no 'completion'; found: 'prompt'"),
    ({"completion": "a"}, "line 2: has no 'prompt'; found: 'completion'"),
    ({"prompt": "", "completion": "a"}, "line 2: the prompt (column 'prompt') is empty"),
    (
        {"prompt": "a", "completion": [{"role": "user", "content": "b"}]},
        "line 2: column 'completion': the answer begins with a message of role 'user'",
    ),
    (
        {"prompt": "a", "completion": [{"role": "assistant", "content": ""}]},
        "line 2: column 'completion': answer 1 is empty",
    ),
]


@pytest.mark.parametrize(("row", "says"), BAD_PAIRS)
def test_a_pair_that_is_wrong_is_named_with_its_row(tmp_path: Path, row: dict[str, object], says: str):
    with pytest.raises(DataError) as caught:
        load_answers(written(tmp_path, [{"prompt": "fine", "completion": "fine"}, row]))
    assert says in str(caught.value)


USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
BAD_CONVERSATIONS = [
    ([], "is empty"),
    ("text", "column 'messages' holds text; a list of messages is expected"),
    ([USER], "no message is the assistant's, so there is no answer to learn"),
    ([ASSISTANT], "the first message is the assistant's, so nothing is asked"),
    ([USER, ASSISTANT, USER], "the last message is not the assistant's"),
    ([USER, {"role": "assistant", "content": " "}], "answer 1 is empty"),
    ([USER, {"role": "assistant"}], "message 2 has NoneType as content; text is expected"),
    ([USER, {"content": "a"}], "message 2 has no role"),
    ([USER, {"role": "assistant", "content": "a\0b"}], "holds a NUL character"),
]


@pytest.mark.parametrize(("messages", "says"), BAD_CONVERSATIONS)
def test_a_conversation_that_is_wrong_is_named_with_its_row(tmp_path: Path, messages: object, says: str):
    with pytest.raises(DataError) as caught:
        load_answers(written(tmp_path, [{"messages": [USER, ASSISTANT]}, {"messages": messages}]))
    assert "line 2: " in str(caught.value)
    assert says in str(caught.value)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path):
    rows = [
        {"prompt": "", "completion": "a"},
        {"prompt": "a", "completion": 3},
        {"prompt": "a", "completion": ""},
    ]
    with pytest.raises(DataError, match="problems") as caught:
        load_answers(written(tmp_path, rows))
    assert all(f"line {number}: " in str(caught.value) for number in (1, 2, 3))


def test_data_without_answers_says_which_columns_there_are(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        load_answers(written(tmp_path, [{"prompt": "a", "completions": "b"}]))
    told = "there is no column 'completion' for the answers, and no 'messages' with conversations; found: "
    assert told + "'prompt', 'completions'." in str(caught.value)
    assert "Did you mean 'completions'?" in str(caught.value)
    assert "Set data.completion" in str(caught.value)


def test_rows_that_are_too_long_are_refused_by_name_or_left_out_and_counted(tmp_path: Path):
    rows = [{"prompt": "a", "completion": "b"}, *[{"prompt": "a", "completion": "b" * 99}] * 2]
    path = written(tmp_path, rows)
    with pytest.raises(DataError) as caught:
        encoded(path, max_tokens=99)
    assert "2 problems" in str(caught.value)
    assert "line 2: prompt and answer have " in str(caught.value)
    assert 'data.overlong = "drop"' in str(caught.value)
    found = encode_answers(
        load_answers(path), tiny_tokenizer(), stop_ids=STOPS, max_tokens=99, source="x", overlong="drop"
    )
    assert (len(found.answers), found.num_dropped) == (1, 2)
    with pytest.raises(DataError, match=r"each is longer than model\.max_tokens = 5"):
        encoded(path, max_tokens=5, overlong="drop")


TURNS = [USER, ASSISTANT, USER, ASSISTANT]
THINKING = (  # the last answer is opened by a thought, which earlier ones don't keep
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if loop.last and message['role'] == 'assistant' %}<think>{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ELSEWHERE = TEMPLATE.replace("assistant\n{% endif %}", "model\n{% endif %}")
ENDLESS = TEMPLATE.replace("<|im_end|>\n{% endfor %}", "\n{% endfor %}")


@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        (THINKING, TURNS, "answer 2: the chat template renders the turns before it otherwise"),
        (ELSEWHERE, TURNS, "answer 1: the chat template renders its own prompt otherwise"),
        (ENDLESS, TURNS, "the chat template ends it with none of the tokens at which sampling stops (2)"),
        (
            TEMPLATE,
            [USER, {"role": "assistant", "content": f"a{END}b"}],
            "holds the text of a token at which",
        ),
        (TEMPLATE.replace("{{ message['content'] }}", ""), TURNS, "the chat template leaves nothing of it"),
    ],
)
def test_what_a_template_makes_unlearnable_is_refused_with_its_row(
    tmp_path: Path, template: str, messages: list[object], says: str
):
    with pytest.raises(DataError) as caught:
        encoded(written(tmp_path, [{"messages": messages}]), template=template)
    assert "line 1: " in str(caught.value)
    assert says in str(caught.value)


def test_a_thought_that_only_the_last_answer_keeps_can_be_learned_alone(tmp_path: Path):
    [answer] = encoded(written(tmp_path, [{"messages": TURNS[:2]}]), template=THINKING)
    assert learned(answer) == f"<think>a{END}"


def test_a_raw_answer_without_an_end_token_is_refused(tmp_path: Path):
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    rows = load_answers(written(tmp_path, [{"prompt": "a", "completion": "b"}]), raw=True)
    with pytest.raises(ConfigError, match="no end token"):
        encode_answers(rows, tokenizer, stop_ids=STOPS, max_tokens=99, source="x")
