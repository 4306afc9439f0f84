"""Files as they grow, settings, states, tables, and where runs are found."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import view_runs
from muster.algo.recipes import RECIPES
from muster.errors import CheckpointError
from muster.store import StoredConfig, quantile, read_config
from muster.view.curves import signal_of, to_columns
from muster.view.findings import findings_of
from muster.view.foreign import text_of
from muster.view.growing import GrowingLines, parsed, read_object
from muster.view.pieces import find_tokenizer, pieces_of
from muster.view.samples import brief, group_list
from muster.view.settings import CLIPS, clip_range, full_score
from muster.view.sources import find_sources, kind_of
from muster.view.status import reward_change, spark
from muster.view.tables import Cache, light_rows, read_columns


def test_lines_are_taken_as_they_come_and_half_a_line_is_left():
    path = Path("lines.jsonl")
    lines = GrowingLines(path)
    assert lines.look() == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert lines.look() == [{"a": 1}, {"a": 2}]
    with path.open("a") as file:
        file.write(': 3}\n[4]\nno\n{"a": NaN}\n' + "[" * 200_000 + "\n")
    assert lines.look() == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": None}]
    assert (lines.num_broken, lines.generation) == (3, 0)
    path.write_text('{"b": 1}\n')
    assert lines.look() == [{"b": 1}]
    assert lines.generation == 1


@pytest.mark.parametrize(
    "value",
    [
        b'1, "a": 2', b"1e999", b"1e-400", b"-0", b"01", b"9007199254740993", b"-" + b"9" * 400, b"9" * 5_000,
        b"0.1000000000000000055511151231257827021181583404541015625", b"[" * 300 + b"]" * 300,
        rb'"\ud800"', rb'"\ude00\ud83d"', b'"\xff"', b'"\xed\xa0\x80"', b'"\x01"', b'"',
    ],
)  # fmt: skip
def test_a_line_is_read_as_pythons_own_reader_reads_it(value: bytes):
    raw = b'{"a": ' + value + b"}"
    try:
        expected = json.loads(raw)
    except ValueError:
        expected = None
    assert repr(parsed(raw)) == repr(expected)


def test_a_pipe_in_place_of_a_file_is_no_file():
    os.mkfifo("pipe")
    assert GrowingLines(Path("pipe")).look() == []
    assert read_object(Path("pipe")) is None
    assert kind_of(Path()) is None


def test_an_object_is_read_or_it_is_none():
    for text in ("[1]", "no", '{"a": ' * 3, ""):
        Path("x.json").write_text(text)
        assert read_object(Path("x.json")) is None
    Path("x.json").write_text('{"a": Infinity}')
    assert read_object(Path("x.json")) == {"a": None}


def test_runs_are_found_where_they_are_named_and_in_folders_of_runs(tmp_path: Path):
    one = view_runs.write_run(tmp_path / "runs" / "one", 1)
    view_runs.write_plain_metrics(tmp_path / "runs" / "two")
    (tmp_path / "runs" / "file").write_text("no folder")
    both = find_sources([tmp_path / "runs"])
    assert [(source.name, source.kind) for source in both] == [("one", "muster"), ("two", "metrics")]
    assert find_sources([one, tmp_path / "runs"]) == both
    assert find_sources([tmp_path / "nowhere"]) == []
    assert len({source.id for source in both}) == 2
    assert all(source.id.isalnum() and len(source.id) == 12 for source in both)


def test_the_clip_range_of_each_recipe_is_the_recipes():
    for name, recipe in RECIPES.items():
        function = getattr(recipe.objective, "func", recipe.objective)
        options = {"low": 0.2, "high": 0.2} | getattr(recipe.objective, "keywords", {})
        clips = function.__name__ == "clip"
        assert (name in CLIPS) == clips, name
        if clips:
            assert CLIPS[name] == (options["low"], options["high"])


@pytest.mark.parametrize(
    ("algo", "clip"),
    [
        ({}, {"low": 0.2, "high": 0.2, "cap": None}),
        ({"recipe": "dapo"}, {"low": 0.2, "high": 0.28, "cap": None}),
        ({"recipe": "gspo"}, None),
        ({"recipe": "gspo", "objective": "clip"}, {"low": 0.2, "high": 0.2, "cap": None}),
        ({"objective": {"use": "clip", "high": 0.5, "cap": 3.0}}, {"low": 0.2, "high": 0.5, "cap": 3.0}),
        ({"objective": {"use": "cispo"}}, None),
    ],
)
def test_the_clip_range_follows_from_the_settings(algo: dict[str, object], clip: dict[str, float] | None):
    assert clip_range(StoredConfig("", {"algo": algo})) == clip


@pytest.mark.parametrize(
    ("reward", "full"),
    [
        ({"use": "f"}, 1.0),
        ({"use": ["f", "g"]}, 2.0),
        ({"use": ["f", "g"], "weights": [1.0, -2.0]}, 1.0),
        ({}, 1.0),
    ],
)
def test_the_full_score_is_the_sum_of_the_weights(reward: dict[str, object], full: float):
    assert full_score(StoredConfig("", {"reward": reward})) == full


def test_settings_that_cannot_be_read_say_nothing():
    Path("config.toml").write_bytes(b"[run\nsteps = \xff")
    found = read_config(Path())
    assert (found.steps, full_score(found), found.tables) == (None, 1.0, {})
    assert "[run" in found.text


def test_the_change_of_the_reward_is_between_as_many_first_and_last_steps():
    assert reward_change([]) == {"reward": None, "change": None, "change_steps": 0}
    assert reward_change([0.5])["change"] is None
    assert reward_change([None, 0.0, 1.0]) == {"reward": 1.0, "change": 1.0, "change_steps": 1}
    assert reward_change([0, 1, 5, 5, 5, 5, 7, 9]) == {"reward": 9, "change": 7.5, "change_steps": 2}


def test_a_small_curve_is_means_and_keeps_its_gaps():
    assert spark([1.0, None, 3.0]) == [1.0, None, 3.0]
    assert spark([1.0, 3.0, None, None, 5.0, 7.0], width=3) == [2.0, None, 6.0]


@pytest.mark.parametrize(
    ("scores", "signal"),
    [([], None), ([1.0], None), ([0.0, 1.0], "mixed"), ([1.0, 1.0], "all_right"), ([0.0, 0.0], "all_wrong"),
     ([-1.0, -1.0], "all_wrong"), ([0.5, 0.5], "equal_between"), ([2.0, 2.0], "all_right")],
)  # fmt: skip
def test_a_group_teaches_where_its_scores_differ(scores: list[float], signal: str | None):
    assert signal_of(scores, 1.0) == signal


def test_quantiles_lie_between_neighbours():
    assert quantile([], 0.5) is None
    assert quantile([3], 0.9) == 3
    assert quantile([0, 10], 0.25) == 2.5
    assert quantile(list(range(11)), 0.9) == 9


def test_columns_leave_out_what_is_no_number():
    lines = [
        {"step": 1, "a": True, "b": "text", "c": [1], "d": 2**60},
        {"step": 2, "a": float("inf"), "e": 1},
    ]
    assert to_columns(lines, [], [], 1.0) == {"step": [1, 2], "a": [1.0, None], "e": [None, 1]}


def test_groups_that_were_drawn_again_are_told_apart():
    rows = [
        {"group_id": name, "completion_text": "x", "score": 0.0, "advantage": 0.0}
        for name in ("7-0-0", "7-1-1", "7-1-0", "odd", "")
    ]
    assert ["replaced" in line["flags"] for line in group_list(rows, 1.0)] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_a_long_prompt_keeps_its_end():
    text = brief("a" * 500 + " the end")
    assert len(text) < 250
    assert text.endswith("the end")
    assert brief("two\n lines") == "two lines"


def test_characters_of_several_tokens_stand_at_the_last():
    tokenizer = view_runs.byte_tokenizer()
    ids = tokenizer.encode("é😀!").ids
    assert pieces_of(tokenizer, ids) == ["", "é", "", "", "", "😀", "!"]
    assert pieces_of(tokenizer, [99_999, *ids[-1:]])[-1] == "!"
    Path("tokenizer.json").write_text('{"model": 1}')
    assert find_tokenizer(Path("tokenizer.json")) is None


def test_findings_are_said_once_with_all_their_steps():
    events = [{"kind": "warning", "step": step, "text": "cut"} for step in (4, 6)]
    events += [{"kind": "start"}, {"kind": "failure", "error": "EngineError", "text": "no memory"}]
    failure, warning = findings_of(events)
    assert (failure["severity"], failure["name"], failure["evidence"]) == ("error", "EngineError", [])
    assert (warning["steps"], warning["evidence"]) == ([4, 6], [{"step": 4}, {"step": 6}])


def test_a_finding_is_told_as_it_was_said_last():
    first = {"kind": "finding", "name": "plateau", "what": "flat", "step": 4}
    last = {
        **first,
        "what": "still flat",
        "step": 9,
        "evidence": {"steps": [9, "x", -1], "groups": [{"step": 9}, 3]},
    }
    (entry,) = findings_of([first, last])
    assert (entry["text"], entry["steps"], entry["evidence"]) == ("still flat", [4, 9], [{"step": 9}])
    (odd,) = findings_of([{"kind": "finding", "evidence": [1], "since": {"a": 1}}])
    assert (odd["name"], odd["evidence"], odd["numbers"]) == ("finding", [], {})


def test_messages_read_as_a_conversation():
    assert text_of([{"role": "user", "content": "hi"}, {"content": [{"type": "image"}]}]) == (
        'user: hi\n?: [{"type": "image"}]'
    )
    assert text_of(None) == ""


def test_a_table_without_the_needed_columns_and_one_that_unfolds_too_far_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    pq.write_table(pa.table({"a": [1]}), "x.parquet")
    with pytest.raises(CheckpointError, match="has no column completion_text, group_id"):
        light_rows(Path("x.parquet"))
    pq.write_table(pa.table({"a": pa.array([0] * 200_001, pa.int8())}), "y.parquet")
    with pytest.raises(CheckpointError, match="200,001 rows"):
        read_columns(Path("y.parquet"))


def test_what_was_read_is_kept_until_the_file_changes():
    path, reads = Path("x"), []
    path.write_text("1")
    cache = Cache(1)
    for text in ("1", "1", "22"):
        path.write_text(text) if text != path.read_text() else None
        assert cache.get(path, "", lambda: reads.append(path.read_text()) or len(reads)) == len(reads)
    assert reads == ["1", "22"]


def test_groups_of_a_step_are_lines_of_plain_json(tmp_path: Path):
    folder = view_runs.write_run(tmp_path / "run", 2)
    lines = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[1]["groups"][0] == {
        "sample": "4",
        "scored": 4,
        "mean": (0.2 + 0.25 + 1.5) / 4,
        "low": 0.0,
        "high": 1.5,
        "length": 21.5,
    }
    assert lines[1]["groups"][2] == {**lines[1]["groups"][2], "scored": 3, "mean": 0.0}
    assert (lines[1]["length_p10"], lines[1]["length_p90"]) == (3.0, 51.0)
