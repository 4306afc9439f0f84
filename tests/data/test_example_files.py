import subprocess
import sys
from pathlib import Path

import pytest

from muster.data import load_answers, load_samples
from muster.rewards import json_extraction

DATA = Path(__file__).parents[2] / "examples" / "data"


def test_the_generator_writes_the_files_that_are_shipped(tmp_path):
    subprocess.run([sys.executable, DATA / "make_json_extraction.py", tmp_path], check=True)
    for name in ("json_extraction.train.csv", "json_extraction.heldout.csv"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


def test_no_held_out_text_is_trained_on():
    train, heldout = (
        {str(sample.messages[0]["content"]) for sample in load_samples(DATA / f"json_extraction.{part}.csv")}
        for part in ("train", "heldout")
    )
    assert (len(train), len(heldout)) == (2000, 200)
    assert not train & heldout


@pytest.mark.parametrize("strict", [False, True])
def test_the_facts_of_a_shipped_text_earn_full_credit(strict):
    prompt = str(load_samples(DATA / "json_extraction.train.csv")[0].messages[0]["content"])
    assert prompt == (
        'Answer in JSON with the keys "name" and "fact":\n\n'
        "Omar Larsen, 32, works as a dentist in Milan and loves climbing."
    )
    answer = '{"name": "Omar Larsen", "age": 32, "job": "dentist", "city": "Milan"}'
    assert json_extraction(answer, prompt, {}, strict=strict) == 1.0


def test_the_question_file_has_an_answer_in_every_row():
    samples = load_samples(DATA / "contains_answer.csv")
    assert len(samples) == 202
    assert all(sample.columns["answer"] for sample in samples)


@pytest.mark.parametrize(("name", "text"), [("periods", "This is"), ("movie", "I thought this movie was")])
def test_the_raw_prompts_are_one_row(name, text):
    assert [sample.text for sample in load_samples(DATA / f"{name}.csv", raw=True)] == [text]


def test_the_answers_of_the_warm_start_are_made_from_the_shipped_prompts_and_are_right(tmp_path):
    for part in ("train", "heldout"):
        name = f"json_extraction.{part}.csv"
        (tmp_path / name).write_bytes((DATA / name).read_bytes())
    subprocess.run([sys.executable, DATA / "make_json_answers.py", tmp_path], check=True)
    for part, count in (("train", 96), ("heldout", 24)):
        path = DATA / f"json_answers.{part}.jsonl"
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
        rows = load_answers(path)
        assert len(rows) == count
        for row in rows:
            [answer], [prompt] = row.turns, row.sample.messages
            assert json_extraction(str(answer["content"]), str(prompt["content"]), {}) == 1.0
