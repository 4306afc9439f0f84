import json
import os

import pytest

from asking import ask
from muster.errors import RewardError
from muster.rewards import PoolGrader, isolations, load_rewards
from muster.rewards.code import code, extract_code
from muster.sandbox import find_isolation, isolation

ADD = "def add(a, b):\n    return a + b\n"
SUM = "print(sum(map(int, input().split())))\n"
CALLS = [{"call": "add", "args": [3, 4], "expected": 7}, {"call": "add", "args": [1, 1], "expected": 2}]


def block(program, language="python"):
    return f"Here it is:\n```{language}\n{program}\n```\nDone."


@pytest.mark.parametrize(
    ("completion", "found"),
    [
        (block("x = 1"), "x = 1\n"),
        (block("x = 1", ""), "x = 1\n"),
        (block("x = 1", "Python3"), "x = 1\n"),
        (block("x = 1") + block("x = 2"), "x = 2\n"),
        (block("x = 1") + block("ls", "bash"), "x = 1\n"),
        (block("x = 1") + block("7", ""), "x = 1\n"),
        (block("x = 1") + "\n```python\nx = 2", "x = 1\n"),
        ("~~~py\nx = '```'\n~~~", "x = '```'\n"),
        ("````python\n'''\n```\n'''\n````", "'''\n```\n'''\n"),
        ("```{.python}\nx\n```", "x\n"),
        ("```python\n```", None),
        ("```python\nx = 1", None),
        (block("ls", "bash"), None),
        ("x = 1", None),
        ("", None),
        ("```" * 1000, None),
    ],
)
def test_the_last_closed_python_block_is_the_code(completion, found):
    assert extract_code(completion) == found


def test_without_fences_the_whole_text_can_be_code():
    assert extract_code("x = 1", fenced=False) == "x = 1"
    assert extract_code("say\n```bash\nls\n```", fenced=False) is None


def test_a_megabyte_is_no_program():
    assert extract_code(block("#" * 1_000_001)) is None


@pytest.mark.parametrize(
    ("program", "tests", "score"),
    [
        (SUM, [{"input": "3 4\n", "output": "7"}], 1.0),
        (SUM, [{"input": "3 4\n", "output": "7 \n\n"}, {"input": "1 1", "output": "3"}], 0.5),
        ("print(7)\nraise SystemExit(1)", [{"input": "3 4", "output": "7"}], 0.0),
        (
            "import sys; print(repr(sys.stdin.read()))",
            [{"output": "''"}, {"input": None, "output": "''"}],
            1.0,
        ),
        (ADD, CALLS, 1.0),
        ("def add(a, b): return 7", CALLS, 0.5),
        (ADD, json.dumps(CALLS), 1.0),
        (ADD, CALLS[0], 1.0),
        (ADD, ["assert add(3, 4) == 7", "assert add((1,), (2,)) == (1, 2)"], 1.0),
        ("def add(a, b): return [*a, *b]", ["assert add((1,), (2,)) == (1, 2)"], 0.0),
        ("def add(a, b): return (*a, *b)", [{"call": "add", "args": [[1], [2]], "expected": [1, 2]}], 1.0),
        ("def f(x): return {x, 2}", "assert f(1) == {1, 2}", 1.0),
        ("def f(x): return {x: None}", "assert f(1) == {1: None}", 1.0),
        ("def f(x=1): return x / 3", "assert f(x=1) == 0.3333333333", 1.0),
        ("def f(x): return [x]", ["assert f(1)", "assert not f(1)"], 0.5),
        ("class A:\n    def f(self, x): return x", [{"call": "A.f", "args": [1], "expected": 1}], 1.0),
        ("def f(): return 10**5000", "assert f() == 1", 0.0),
        ("def f():\n    x = []\n    x.append(x)\n    return x", "assert f() == []", 0.0),
        ("def f(): return object()", "assert f() == 1", 0.0),
        ("def f(): raise ValueError", ["assert f() == 1", "assert f() == None"], 0.0),
        ("def f(x):\n    if x: exit()\n    return x", ["assert f(0) == 0", "assert f(1) == 1"], 0.5),
        ("syntax error", CALLS, 0.0),
        ("", [], None),
        ("", None, None),
        ("", "", None),
        ("print(1)", CALLS, 0.0),
        ("def add(a, b):\n    print('noise')\n    return a + b", CALLS, 1.0),
    ],
)
def test_the_score_is_the_share_of_passed_tests(program, tests, score):
    assert code(block(program), tests) == score


def test_all_or_nothing():
    assert code(block("def add(a, b): return 7"), CALLS, partial=False) == 0.0
    assert code(block(ADD), CALLS, partial=False) == 1.0


def test_numbers_with_a_point_are_equal_up_to_the_tolerance():
    tests = "assert f() == 0.3"
    assert code(block("def f(): return 0.31"), tests, tolerance=0.05) == 1.0
    assert code(block("def f(): return 0.31"), tests) == 0.0


@pytest.mark.parametrize(
    "tests",
    [
        "[",
        [1],
        [{"input": "x"}],
        [{"call": "a b", "expected": 1}],
        ["assert f(x) == 1"],
        ["assert f(1) == g(2)"],
        [{"output": "1", "outputs": "2"}],
    ],
)
def test_a_test_of_no_known_form_is_a_failure_not_a_zero(tests):
    with pytest.raises(ValueError, match="tests"):
        code(block(ADD), tests)


READS_EVERYTHING = """
import gc, glob, re, sys
found = repr([thing for thing in gc.get_objects() if isinstance(thing, (list, dict))])
for pattern in (__file__.rpartition("/")[0] + "/*", "/program/*", "/tmp/*/*"):
    for name in glob.glob(pattern):
        try:
            found += open(name, errors="replace").read()
        except OSError:
            pass
seen = re.findall("expected-[0-9]{4}", found)
def add(a, b):
    return seen[0] if seen else None
"""
FORGES_VERDICTS = """
import os
for number in range(64):
    try:
        os.write(number, b'{"returned": true}' + bytes([10]) + b'{"passed": 1}' + bytes([10]))
    except OSError:
        pass
"""
EQUALS_EVERYTHING = """
class Equal(str):
    __hash__ = None
    def __eq__(self, other):
        return True
def add(a, b):
    return Equal()
"""
PATCHES_THE_HARNESS = """
import json
json.dumps = lambda value, **options: '{"returned": "*"}'
def add(a, b):
    return 1
"""


@pytest.mark.parametrize(
    "program",
    [READS_EVERYTHING, FORGES_VERDICTS, EQUALS_EVERYTHING, PATCHES_THE_HARNESS, "import os; os._exit(0)"],
    ids=["reads", "forges", "equals", "patches", "exits"],
)
def test_a_program_that_does_not_know_the_answer_cannot_pass(program):
    tests = [{"call": "add", "args": [3, 4], "expected": "expected-8831"}]
    assert code(block(program), tests) == 0.0


def test_a_program_that_hangs_costs_its_time_once():
    tests = [{"input": str(number), "output": "1"} for number in range(20)]
    assert code(block("while True: pass"), tests, wall_s=0.5) == 0.0


def test_a_demand_that_is_not_met_is_an_error():
    if find_isolation().bubblewrap:
        assert code(block(ADD), CALLS, isolation="bubblewrap") == 1.0
    else:
        with pytest.raises(RewardError, match="bubblewrap only"):
            code(block(ADD), CALLS, isolation="bubblewrap")


def test_tokens_of_the_trainer_are_not_printed(monkeypatch):
    monkeypatch.setitem(os.environ, "WANDB_API_KEY", "k-4471")
    tests = [{"input": None, "output": "k-4471"}]
    assert code(block("import os; print(os.environ.get('WANDB_API_KEY'))"), tests) == 0.0


def test_what_stands_around_the_code_is_said_of_each_reward_that_runs_it():
    rewards = load_rewards(["code", "number"])
    assert isolations(rewards) == {"code": isolation()}


def test_code_is_graded_in_the_pool():
    grader = PoolGrader(load_rewards("code"), workers=1)
    try:
        assert [score.value for score in grader.grade(ask(block(ADD), tests=CALLS))] == [1.0]
    finally:
        grader.close()
