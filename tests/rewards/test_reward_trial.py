"""Rewards on trial: the holes of some are known, and have to be found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli import main
from muster.records import Sample
from muster.rewards import InlineGrader, load_rewards
from muster.rewards.probes import MANY, Row, probes, rows_of
from muster.rewards.trial import try_reward

ROOT = Path(__file__).parents[2]
QUESTIONS = (
    Sample(id="0", messages=({"role": "user", "content": "What is 20 + 3?"},), columns={"answer": "23"}),
    Sample(id="1", messages=({"role": "user", "content": "What is 5 + 2?"},), columns={"answer": "7"}),
)


def tried(use, options=None, samples=QUESTIONS, **rules):
    [reward] = load_rewards(use, options={use: options} if options else None)
    return try_reward(reward, InlineGrader([reward]), samples, **rules)


def wrong(verdict):
    return {found.probe: found.wrong for found in verdict.findings if found.wrong}


def test_answers_are_told_apart():
    rows = rows_of(["a", "b", "c", "d"], ["1", ["2", "3"], None, "1"])
    assert [row.answer for row in rows] == ["1", "2", None, "1"]
    assert [row.others for row in rows] == [("2",), ("1",), ("1", "2"), ("2",)]


def test_a_row_is_tried_in_ten_right_wordings_and_more_wrong_ones():
    made = probes(Row("What is 20 + 3?", "23", ("7",)), "answer")
    right = [probe for probe in made if probe.duty == "must pass"]
    assert len({probe.text for probe in right}) == 10
    assert all("23" in probe.text for probe in right)
    assert r"So it is \boxed{23}." in [probe.text for probe in right]
    texts = {probe.name: probe.text for probe in made if probe.duty == "must fail"}
    assert texts["empty"] == ""
    assert texts["echo of the prompt"] == "What is 20 + 3?"
    assert texts["all candidate answers at once"] == "23, 7"
    assert texts["the answer negated"] == "The answer is not 23."
    assert texts["the number negated"] == "-23"
    assert texts["the answer of another row"] == "7"
    assert len(texts["a million brackets"]) == MANY


def test_a_row_without_a_reference_has_nothing_that_must_pass():
    made = probes(Row("What is it?", None, ()), "answer")
    assert {probe.duty for probe in made} == {"must fail"}


def test_the_number_reward_has_few_holes():
    verdict = tried("number")
    assert verdict.false_rejects == 0
    assert wrong(verdict) == {"all candidate answers at once": 1, "the answer negated": 2}
    strict = tried("number", {"strict": True})
    assert strict.false_accepts == 0


def test_a_reward_that_looks_for_text_is_caught():
    found = wrong(tried("contains_answer"))
    assert {"keyword stuffing", "all candidate answers at once", "the answer negated"} <= found.keys()
    assert "bare" not in found


def test_the_holes_of_json_extraction_are_open_until_it_is_strict():
    sample = Sample(
        id="0", messages=({"role": "user", "content": "Maria lives in Lisbon and works as a nurse."},)
    )
    loose = tried("json_extraction", samples=(sample,))
    assert wrong(loose) == {
        "empty values": 1,
        "single letters": 1,
        "one fact under many keys": 1,
        "the whole text as a value": 1,
        "blank keys": 1,
    }
    assert loose.false_rejects == 0
    strict = tried("json_extraction", {"strict": True}, samples=(sample,))
    assert (strict.false_accepts, strict.false_rejects) == (0, 0)


def test_rewards_without_wrong_answers_say_so():
    verdict = tried("char_count")
    assert (verdict.false_accepts, verdict.false_rejects) == (0, 0)
    assert "no wrong answers" in verdict.note


def test_code_is_tried_as_code():
    sample = Sample(
        id="0",
        messages=({"role": "user", "content": "Write add."},),
        columns={
            "answer": "def add(a, b):\n    return a + b",
            "tests": [{"call": "add", "args": [1, 2], "expected": 3}],
        },
    )
    verdict = tried("code", samples=(sample,))
    assert (verdict.false_accepts, verdict.false_rejects) == (0, 0)
    assert {found.tried for found in verdict.findings if found.duty == "must pass"} == {1}


def test_failures_and_abstentions_accept_and_reject_nothing():
    def moody(completion, answer):
        if not completion:
            raise ValueError("nothing there")
        return

    [reward] = load_rewards(moody)
    verdict = try_reward(reward, InlineGrader([reward]), QUESTIONS)
    assert (verdict.false_accepts, verdict.false_rejects, verdict.failed) == (0, 0, 2)
    [empty] = [found for found in verdict.findings if found.probe == "empty"]
    assert "nothing there" in empty.example
    assert sum(found.abstained for found in verdict.findings) == sum(f.tried for f in verdict.findings) - 2


def test_a_lower_score_can_count_as_accepted():
    def half(completion, answer):
        return 0.5

    [reward] = load_rewards(half)
    grader = InlineGrader([reward])
    assert try_reward(reward, grader, QUESTIONS).false_accepts == 0
    assert try_reward(reward, grader, QUESTIONS, accept=0.5).false_rejects == 0
    assert try_reward(reward, grader, QUESTIONS, accept=0.5).false_accepts > 20


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(20, 24)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_the_verb_prints_a_table_and_ends_with_3_on_false_accepts(data, capsys):
    arguments = ["reward", "test", "--data.path", str(data), "--reward.use", "number", "--rows", "2"]
    assert main(arguments) == 3
    shown = capsys.readouterr().out
    assert "3 false accepts, 0 false rejects, 0 failures" in shown
    assert "ms a call (median)" in shown
    assert main([*arguments, "--fail-on", "never"]) == 0


def test_the_verb_prints_json(data, capsys):
    arguments = ["reward", "test", "--data.path", str(data), "--reward.use", "exact", "--json", "--rows", "1"]
    main(arguments)
    [verdict] = json.loads(capsys.readouterr().out)
    assert verdict["reward"] == "exact"
    assert verdict["false_accepts"] == 0
    assert {found["duty"] for found in verdict["findings"]} == {"must fail", "must pass"}


def test_the_verb_does_not_wait_for_torch(data):
    arguments = ["reward", "test", "--data.path", str(data), "--reward.use", "exact", "--rows", "1", "--json"]
    program = (
        "import sys; from muster.cli import main\n"
        f"main({arguments!r}); print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "False\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rows", "0"], "--rows is 0"),
        (["--reward.use", "nothing"], "which Muster does not have"),
        (["--reward.use", "code"], "needs the column 'tests'"),
    ],
)
def test_what_cannot_be_tried_is_said(arguments, says, data, capsys):
    given = ["--data.path", str(data), *arguments]
    use = [] if "--reward.use" in arguments else ["--reward.use", "exact"]
    assert main(["reward", "test", *given, *use]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_the_verb_has_examples_in_its_help(capsys):
    assert main(["reward", "test", "--help"]) == 0
    assert "muster reward test" in capsys.readouterr().out.partition("Examples")[2]


def without_times(text):
    return [line.rstrip() for line in text.splitlines() if "ms a call" not in line]


@pytest.mark.parametrize("place", [0, 1])
def test_the_page_shows_what_the_verb_prints(place, capsys, monkeypatch):
    page = (ROOT / "docs" / "verbs" / "reward-test.md").read_text(encoding="utf-8")
    Path("texts.jsonl").write_text(page.split("```jsonl\n")[1].partition("```")[0])
    Path("run.toml").write_text(page.split("```toml\n")[1].partition("```")[0])
    monkeypatch.setenv("COLUMNS", "110")
    command, _, shown = page.split("```console\n$ ")[place + 1].partition("```")[0].partition("\n")
    shown = shown.partition("\n$ ")[0]
    main(command.split()[1:])
    assert without_times(capsys.readouterr().out) == without_times(shown)
