import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.data import load_samples
from muster.data.values import MAX_DEPTH, MAX_FIELD_CHARS
from muster.errors import ConfigError, DataError


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def refusal(path: Path | str, **settings: object) -> str:
    with pytest.raises(DataError) as caught:
        load_samples(path, **settings)  # pyright: ignore[reportArgumentType]
    return str(caught.value)


def test_a_csv_row_is_a_stripped_user_message_and_its_other_columns(tmp_path):
    path = written(tmp_path, "a.csv", "prompt,answer\n  What is 2+2? ,4\nName a colour,\n")
    first, second = load_samples(path)
    assert (first.id, second.id) == ("0", "1")
    assert first.messages == ({"role": "user", "content": "What is 2+2?"},)
    assert first.text is None
    assert first.columns == {"answer": "4"}
    assert second.columns == {"answer": None}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.ndjson", "a.json", "a.parquet"])
def test_every_format_gives_the_same_samples(tmp_path, name):
    rows = [{"prompt": "one\nline", "answer": "é"}, {"prompt": "two", "answer": None}]
    path = tmp_path / name
    match path.suffix:
        case ".csv":
            written(tmp_path, name, 'prompt,answer\r\n"one\nline",é\r\ntwo,\r\n')
        case ".json":
            written(tmp_path, name, json.dumps(rows, indent=1))
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        case _:
            written(tmp_path, name, "\r\n".join(json.dumps(row) for row in rows) + "\r\n\r\n")
    samples = load_samples(path)
    assert [sample.messages[0]["content"] for sample in samples] == ["one\nline", "two"]
    assert [sample.columns for sample in samples] == [{"answer": "é"}, {"answer": None}]


def test_a_system_message_comes_before_a_prompt_of_text(tmp_path):
    [sample] = load_samples(written(tmp_path, "a.csv", "q\nhi\n"), prompt="q", system="Be brief.")
    assert sample.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    )


def test_a_raw_prompt_stays_as_it_is(tmp_path):
    path = written(tmp_path, "a.jsonl", json.dumps({"prompt": "def f():\n    "}))
    [sample] = load_samples(path, raw=True)
    assert (sample.text, sample.messages) == ("def f():\n    ", ())


def test_a_list_of_messages_is_kept(tmp_path):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": " u "}]
    path = written(tmp_path, "a.jsonl", json.dumps({"prompt": messages, "n": 3}))
    [sample] = load_samples(path)
    assert list(sample.messages) == messages
    assert sample.columns == {"n": 3}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "is empty"),
        (["hi"], "message 1 is text"),
        ([{"content": "hi"}], "message 1 has no role; found: 'content'"),
        ([{"role": "user", "content": None}], "message 1 has NoneType as content"),
        ([{"role": "user", "content": " "}], "the last message is empty"),
        (
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
            "the last message is the",
        ),
    ],
)
def test_a_list_that_is_no_conversation_is_refused_with_its_line(tmp_path, messages, says):
    text = refusal(written(tmp_path, "a.jsonl", json.dumps({"prompt": messages})))
    assert "line 1" in text
    assert says in text


def test_a_byte_order_mark_is_accepted(tmp_path):
    path = written(tmp_path, "a.csv", b"\xef\xbb\xbfprompt\nhi\n")
    assert load_samples(path)[0].messages[0]["content"] == "hi"


def test_null_nan_and_absent_are_the_same_in_optional_columns(tmp_path):
    lines = ['{"prompt":"a","x":null,"y":1.5}', '{"prompt":"b","x":NaN,"y":2}', '{"prompt":"c"}']
    samples = load_samples(written(tmp_path, "a.jsonl", "\n".join(lines)))
    assert [dict(sample.columns) for sample in samples] == [
        {"x": None, "y": 1.5},
        {"x": None, "y": 2},
        {"x": None, "y": None},
    ]
    table = pyarrow.table({"prompt": ["a", "b"], "x": [float("nan"), None]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert [s.columns["x"] for s in load_samples(tmp_path / "a.parquet")] == [None, None]


def test_a_missing_column_names_file_row_found_and_expected(tmp_path):
    path = written(tmp_path, "a.csv", "promt,answer\nhi,1\n")
    text = refusal(path)
    for part in (str(path), "line 2", "'promt', 'answer'", "no column 'prompt'", "Did you mean 'promt'?"):
        assert part in text


def test_all_empty_prompts_are_counted_and_the_first_five_named(tmp_path):
    lines = ['{"prompt":"ok"}', *['{"prompt":null}'] * 3, *['{"prompt":"  "}'] * 3, '{"answer":1}']
    text = refusal(written(tmp_path, "a.jsonl", "\n".join(lines)))
    assert "7 problems" in text
    assert "line 2: the prompt (column 'prompt') is empty" in text
    assert "line 6" in text
    assert "line 7" not in text
    assert "and 2 more" in text


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"prompt\n", "has no rows"),
        ("a.jsonl", b"\n\n", "has no rows"),
        ("a.json", b"[]", "has no rows"),
        ("a.csv", b"prompt,answer,answer\nhi,1,2\n", "'answer' appears 2 times"),
        ("a.csv", b"prompt,\nhi,1\n", "column 2 has no name"),
        ("a.csv", b"prompt,answer\nhi,1\nho\n", "line 3: has 1 cells, but the header names 2 columns"),
        ("a.csv", b'prompt\n"hi\n', "is not CSV"),
        ("a.csv", b"prompt\nhi\n\xff\xfe\n", "line 3: byte 10 (0xff) is not UTF-8"),
        ("a.csv", "prompt\nhi\n".encode("utf-16"), "is UTF-16"),
        ("a.json", b'[{"prompt":\n"\xff"}]', "line 2: byte 13 (0xff) is not UTF-8"),
        ("a.json", "[]".encode("utf-16"), "is UTF-16"),
        ("a.csv", b"prompt\nh\x00i\n", "line 2: column 'prompt' holds a NUL character at position 1"),
        ("a.txt", b"hi\n", "has the ending '.txt'"),
        (
            "a.jsonl",
            b'{"prompt":"a"}\n{"prompt":"b","answer":1,"answer":2}',
            "line 2: key 'answer' appears 2 times",
        ),
        ("a.jsonl", b'{"prompt":"a","m":{"k":1,"k":2}}', "line 1: key 'k' appears 2 times"),
        ("a.json", b'[{"prompt":"a"},\n\n {"prompt":"b","answer":1,"answer":2}]', "line 3: key 'answer'"),
        ("a.jsonl", b'{"prompt":"a"}\n{"prompt":\n', "line 2: is not JSON"),
        ("a.jsonl", b'["a"]', "line 1: is not an object but list"),
        ("a.jsonl", b'{"prompt":"a"} {"prompt":"b"}', "goes on after its JSON value"),
        ("a.jsonl", b'{"prompt":"a","x":Infinity}', "Infinity is not JSON"),
        ("a.jsonl", b'{"prompt":"a","x":' + b"9" * 5000 + b"}", "line 1: Exceeds the limit"),
        ("a.json", b'[{"prompt":"a"} {"prompt":"b"}]', "line 1: is not followed by ',' or ']'"),
        ("a.json", b'[{"prompt":"a"}', "is not followed by ',' or ']'"),
        ("a.json", b'[{"prompt":"a"}] x', "is not closed by one ']'"),
        ("a.jsonl", b'{"prompt":"\\ud800"}', "half a surrogate pair (\\ud800)"),
        ("a.jsonl", b'{"prompt":"a","x":["\\u0000"]}', "column 'x' holds a NUL"),
        ("a.jsonl", b'{"prompt":3}', "holds a number; text or a list of messages is expected"),
        (
            "a.jsonl",
            b'{"prompt":"a"}\n{"prompt":[{"role":"user","content":"b"}]}',
            "holds a list, but text in line 1",
        ),
        (
            "a.jsonl",
            b'{"prompt":"a","x":1}\n{"prompt":"b","x":"1"}',
            "column 'x' holds text, but a number in line 1",
        ),
        ("a.jsonl", b'{"prompt":"a","x":1}\n{"prompt":"b","x":true}', "holds true or false, but a number"),
        ("a.jsonl", b'{"prompt":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (
            "a.jsonl",
            b'{"prompt":"a","x":' + b"[" * 200 + b"]" * 200 + b"}",
            f"nested deeper than {MAX_DEPTH}",
        ),
        ("a.parquet", b"PAR1 nothing of the kind", "can't be read as Parquet"),
        ("a.csv.gz", b"\x1f\x8b\x08\x00", "is packed with gzip. Unpack it first"),
        ("a.csv", b"\x1f\x8b\x08\x00", "is packed with gzip"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(tmp_path, name, content, says):
    path = written(tmp_path, name, content)
    text = refusal(path)
    assert str(path) in text
    assert says in text


def test_a_huge_field_is_refused(tmp_path):
    text = refusal(written(tmp_path, "a.jsonl", json.dumps({"prompt": "x" * (MAX_FIELD_CHARS + 1)})))
    assert f"has {MAX_FIELD_CHARS + 1} characters; at most {MAX_FIELD_CHARS}" in text
    text = refusal(written(tmp_path, "a.csv", "prompt\n" + "x" * (MAX_FIELD_CHARS + 1) + "\n"))
    assert "larger than field limit" in text


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "pipe.csv")
    (tmp_path / "null.csv").symlink_to("/dev/null")
    for name in ("pipe.csv", "link.csv", "null.csv"):
        assert "is not a regular file" in refusal(tmp_path / name)
    assert "is a folder" in refusal(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "s.csv"))
        assert "is not a regular file" in refusal(tmp_path / "s.csv")


def test_a_link_to_a_regular_file_is_followed(tmp_path):
    written(tmp_path, "a.csv", "prompt\nhi\n")
    (tmp_path / "b.csv").symlink_to(tmp_path / "a.csv")
    assert len(load_samples(tmp_path / "b.csv")) == 1


def test_a_missing_file_names_the_nearest_one(tmp_path):
    written(tmp_path, "train.csv", "prompt\nhi\n")
    assert "Did you mean 'train.csv'?" in refusal(tmp_path / "trian.csv")
    assert "no folder" in refusal(tmp_path / "nowhere" / "a.csv")
    assert "can't be opened" in refusal("a\0.csv")


def test_duplicate_parquet_columns_are_refused(tmp_path):
    table = pyarrow.Table.from_arrays(
        [pyarrow.array(["a"]), pyarrow.array(["b"])], names=["prompt", "prompt"]
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert "'prompt' appears 2 times" in refusal(tmp_path / "a.parquet")


def test_a_mapping_function_makes_rows(tmp_path):
    written(
        tmp_path,
        "gsm.py",
        "def split(row):\n    q, a = row['text'].split('####')\n"
        "    return {'prompt': q, 'answer': a.strip()}\n",
    )
    path = written(tmp_path, "a.jsonl", json.dumps({"text": "2 and 2? #### 4"}))
    [sample] = load_samples(path, map=f"{tmp_path / 'gsm.py'}:split")
    assert sample.messages[0]["content"] == "2 and 2?"
    assert sample.columns == {"answer": "4"}


def test_a_mapping_function_that_fails_names_the_row(tmp_path):
    written(tmp_path, "m.py", "def bad(row):\n    return None if row['n'] else 1 / 0\n")
    path = written(tmp_path, "a.jsonl", '{"prompt":"a","n":0}\n{"prompt":"b","n":1}')
    text = refusal(path, map=f"{tmp_path / 'm.py'}:bad")
    assert "line 1: data.map raised ZeroDivisionError" in text
    assert "line 2: data.map returned NoneType; a row (a dict of columns) is expected" in text


def test_settings_that_would_be_ignored_are_refused(tmp_path):
    path = written(tmp_path, "a.jsonl", '{"prompt":[{"role":"user","content":"a"}]}')
    assert "data.system is for prompts of text" in refusal(path, system="s")
    assert "text is expected" in refusal(path, raw=True)
    assert "no subset 'x'" in refusal(path, subset="x")
    with pytest.raises(ConfigError, match=r"data\.raw"):
        load_samples(path, raw=True, system="s")


def test_a_hub_data_set_is_loaded_by_its_id(tmp_path, monkeypatch):
    written(
        tmp_path,
        "datasets.py",
        "def load_dataset(path, name=None, split=None):\n"
        "    if path != 'owner/name': raise FileNotFoundError(path)\n"
        "    return [{'prompt': 'hi', 'from': f'{name} {split}'}]\n",
    )
    monkeypatch.syspath_prepend(tmp_path)
    [sample] = load_samples("owner/name", subset="main", split="test")
    assert sample.columns == {"from": "main test"}
    assert "owner/other: the data set (split 'train') can't be loaded from the hub" in refusal("owner/other")


def test_without_the_extra_a_hub_id_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    assert "pip install 'muster-rl[hub]'" in refusal("owner/name")


def test_a_file_wins_over_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    written(tmp_path, "owner/name", "hi")
    assert "has the ending ''" in refusal("owner/name")


@given(
    st.sampled_from(["a.csv", "a.jsonl", "a.json", "a.parquet"]),
    st.binary(max_size=60)
    | st.lists(st.sampled_from(list('{}[]":,\n\r\\ aprompt1')), max_size=40).map(
        lambda parts: ('{"prompt":' + "".join(parts)).encode()
    ),
)
@settings(max_examples=300, deadline=None)
def test_no_bytes_raise_anything_but_a_data_error(name, content):
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), name, content)
        with contextlib.suppress(DataError):
            assert load_samples(path)
