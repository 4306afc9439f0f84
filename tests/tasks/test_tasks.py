import json
import subprocess
import sys
from pathlib import Path

import pytest

from muster.config import load
from muster.data import load_samples
from muster.errors import ConfigError, RewardError
from muster.rewards import BUILTINS, load_rewards
from muster.rewards.reasoning_gym import reasoning_gym
from muster.sandbox.harness import encoded
from muster.tasks import RunsTextError, make_rows, read_task, refuse_shared_rows, score_answer, score_by

pytest.importorskip("reasoning_gym")

SUMS = "reasoning_gym:chain_sum?min_terms=2&max_terms=3&size=6&seed=1"


def scored(line, row, answer=None):
    """What the task gives an answer to the row, or the row's own answer."""
    return score_answer(line, row["entry"], answer or row["answer"])


def rewarded(text, columns, **options):
    return reasoning_gym(text, columns["task"], columns["entry"], **options)


def test_a_line_names_a_task_with_its_options():
    task = read_task(SUMS)
    assert (task.name, task.size, task.seed) == ("chain_sum", 6, 1)
    assert task.options == {"min_terms": 2, "max_terms": 3}
    assert (read_task("reasoning_gym:chain_sum").size, read_task("reasoning_gym:chain_sum").seed) == (500, 0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("chain_sums", "Did you mean 'chain_sum'"),
        ("", "has no task ''"),
        ("n_queens", "running it as Python"),
        ("ransom_note", "otherwise in every process"),
        ("chain_sum?min_term=2", "Did you mean 'min_terms'"),
        ("chain_sum?size=0", "size is 0"),
        ("chain_sum?size=ten", "size is 'ten'"),
        ("chain_sum?size=true", "size is True"),
        ("chain_sum?seed=4096", "from 0 to 4095"),
        ("chain_sum?seed=1&seed=2", "given twice"),
        ("chain_sum?size", "bad query field"),
        ("chain_sum?min_terms=5&max_terms=2", "max_terms must be >= min_terms"),
        ("chain_sum?min_terms=two", "can't be made so"),
    ],
)
def test_a_line_that_names_nothing_says_what_it_could(line, says):
    with pytest.raises(ConfigError) as caught:
        load_samples(f"reasoning_gym:{line}")
    assert says in str(caught.value)


def test_rows_are_samples_with_what_the_scorer_needs():
    samples = load_samples(SUMS)
    assert len(samples) == 6
    [message] = samples[0].messages
    assert message["role"] == "user"
    assert set(samples[0].columns) == {"answer", "task", "entry"}
    json.dumps(dict(samples[0].columns))


def test_the_same_line_makes_the_same_rows_in_another_process():
    here = [row["prompt"] for row in make_rows(SUMS)]
    program = (
        "import json; from muster.tasks import make_rows\n"
        f"print(json.dumps([row['prompt'] for row in make_rows({SUMS!r})]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == here


def test_another_seed_is_other_rows():
    # reasoning-gym's own seeds 1 and 2 share all rows but one.
    def prompts(seed):
        rows = make_rows(f"reasoning_gym:chain_sum?min_digits=6&max_digits=6&size=50&seed={seed}")
        return {row["prompt"] for row in rows}

    assert len(prompts(1)) == 50
    assert not prompts(1) & prompts(2)


def test_held_out_rows_have_another_seed():
    refuse_shared_rows(SUMS, SUMS.replace("seed=1", "seed=2"))
    refuse_shared_rows(SUMS, "held.csv")
    with pytest.raises(ConfigError, match="seed=2"):
        refuse_shared_rows(SUMS, SUMS.replace("size=6", "size=3"))


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("{a}", 1.0),
        (" {a}\n", 1.0),
        ("so \\boxed{{{a}}} it is", 1.0),
        ("<think>17</think> <answer>{a}</answer>", 1.0),
        ("<answer>{a}</answer> <answer>none</answer>", 0.0),
        ("<think>{a}", 0.0),
        ("", 0.0),
        ("no idea", 0.0),
    ],
)
def test_answers_are_scored_by_the_tasks_own_rule(completion, score):
    columns = load_samples(SUMS)[0].columns
    text = completion.format(a=columns["answer"])
    assert rewarded(text, columns) == score


def test_an_answer_among_words_has_the_part_that_the_rule_gives():
    columns = load_samples(SUMS)[0].columns
    text = f"It is {columns['answer']}"
    assert rewarded(text, columns) == len(str(columns["answer"])) / len(text)


@pytest.mark.parametrize(
    ("completion", "score"),
    [("So 1 + 1 is {a}.", 1.0), ("{a}", 1.0), ("{a} or 99", 0.0), ("\\boxed{{99}}, not {a}", 0.0)],
)
def test_the_last_number_can_be_the_answer(completion, score):
    columns = load_samples(SUMS)[0].columns
    assert rewarded(completion.format(a=columns["answer"]), columns, last_number=True) == score


def test_a_row_of_no_task_is_an_abstention():
    assert reasoning_gym("7", None, None) is None


# The package that holds these puzzles leaves its file to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_tuples_reach_the_scorer_as_tuples():
    line = "reasoning_gym:arc_agi?size=1"
    [row] = make_rows(line)
    assert scored(line, row) == 1.0


def test_an_answer_on_which_the_rule_fails_is_wrong():
    line = "reasoning_gym:prime_factorization?size=1"
    [row] = make_rows(line)
    assert scored(line, row, "two") == 0.0
    assert scored(line, row) == 1.0


def test_a_rule_that_fails_on_the_rows_own_answer_is_a_failure_and_no_score():
    entry = json.dumps(encoded({"question": "6?", "answer": "2 x 3", "metadata": {}}))
    with pytest.raises(RewardError, match="fails on the row's own answer, '2 x 3'"):
        score_answer("reasoning_gym:prime_factorization?size=1", entry, "2 x 3")


def running(answer, entry):
    """A rule as no task may have it."""
    return float(eval(answer))  # what the guard is for


def hiding(answer, entry):
    """The same, with the refusal swallowed."""
    try:
        return running(answer, entry)
    except Exception:
        return 1.0


@pytest.mark.parametrize("rule", [running, hiding])
def test_a_rule_that_would_run_the_answer_is_stopped(rule, tmp_path):
    trap = tmp_path / "ran"
    with pytest.raises(RunsTextError):
        score_by(rule, {"question": "1+1"}, f"[open({str(trap)!r}, 'w')]")
    assert not trap.exists()
    assert score_by(rule, {"metadata": ["2 - 1"]}, "2 - 1") == 1.0


def test_a_rule_may_run_the_tasks_own_text():
    line = "reasoning_gym:bitwise_arithmetic?size=1"
    [row] = make_rows(line)
    assert scored(line, row) == 1.0


def test_the_reward_has_its_columns_in_the_rows():
    [reward] = load_rewards("reasoning_gym")
    assert {"task", "entry"} <= {*reward.signature.required}
    assert BUILTINS["reasoning_gym"].extra == "tasks"


def test_the_package_is_not_imported_before_a_task_is_named():
    program = (
        "import sys, muster.rewards, muster.data\n"
        "print('reasoning_gym' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_nothing_is_fetched_from_a_network():
    program = (
        "import sys\n"
        "def watch(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo'): print(event, arguments)\n"
        "sys.addaudithook(watch)\n"
        f"from muster.tasks import make_rows\nprint(len(list(make_rows({SUMS!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "6\n"


def test_the_example_holds_out_another_seed():
    config = load(Path(__file__).parents[2] / "examples" / "arithmetic.toml")
    assert config.data.eval_path is not None
    refuse_shared_rows(config.data.path, config.data.eval_path)
    assert len(load_samples(config.data.eval_path)) == config.eval.prompts
