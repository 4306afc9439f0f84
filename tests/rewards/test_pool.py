"""The pool gives what the rewards give, wherever they run, and nothing of them reaches the run."""

import asyncio
import functools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import ask
from muster.errors import ConfigError, RewardError
from muster.rewards import InlineGrader, PoolGrader, load_rewards

MINE = """
import asyncio, os, sys
def length(completion, *, scale=1.0):
    return scale * len(completion)
async def slow_length(completion):
    await asyncio.sleep(0.05)
    return len(completion)
def modules(completion):
    return float("torch" in sys.modules)
def process(completion):
    return os.getpid()
class Grader:
    def score(self, completion):
        return 2.0
grader = Grader()
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


class Closing:
    """Makes pools and closes them when the test is over."""

    def __init__(self) -> None:
        self.made: list[PoolGrader] = []

    def __call__(self, *args, **settings) -> PoolGrader:
        self.made.append(PoolGrader(load_rewards(*args), **settings))
        return self.made[-1]


@pytest.fixture
def pool() -> Iterator[Closing]:
    closing = Closing()
    yield closing
    for grader in closing.made:
        grader.close()


def values(grader: PoolGrader, *texts: str) -> list[float | None]:
    scores = grader.grade(ask(*texts))
    assert [score.failures for score in scores if score.failures] == []
    return [score.value for score in scores]


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_reward_with_a_name_runs_in_a_fresh_interpreter_without_torch(mine, pool, can_fork):
    uses = [f"{mine}:length", f"{mine}:modules", f"{mine}:grader.score", "char_count"]
    options = {"length": {"scale": 2.0}}
    grader = pool(uses, [1.0, 0.0, 0.0, 0.0], options, workers=1, can_fork=can_fork)
    grader.check()
    [score] = grader.grade(ask("a.b"))
    assert score.parts == {"length": 6.0, "modules": 0.0, "grader.score": 2.0, "char_count": 1.0}
    assert score.value == 6.0


def test_what_no_name_leads_to_runs_in_a_forked_process(pool):
    here = os.getpid()
    grader = pool(functools.partial(lambda completion, other: os.getpid() != other, other=here))
    assert values(grader, "a") == [1.0]


def test_where_nothing_forks_a_function_without_a_name_runs_in_this_process(pool):
    grader = pool(lambda completion: os.getpid(), can_fork=False)
    assert values(grader, "a") == [os.getpid()]
    assert grader.describe()[0].endswith("in the process of the run, without a time limit")


def test_a_reward_can_ask_to_run_in_the_process_of_the_run(mine, pool):
    def judge(completion):
        return os.getpid()

    judge.runs_in_main = True  # pyright: ignore[reportFunctionMemberAccess]
    grader = pool([judge, f"{mine}:process"], in_process=["process"])
    [score] = grader.grade(ask("a"))
    assert score.parts == {"judge": os.getpid(), "process": os.getpid()}


def test_an_unknown_reward_in_process_is_refused():
    with pytest.raises(
        ConfigError, match=r"reward\.in_process holds 'char_coutn'.*Did you mean 'char_count'"
    ):
        PoolGrader(load_rewards("char_count"), in_process=["char_coutn"])


def test_where_each_reward_runs_is_said(pool):
    grader = pool(["char_count", lambda completion: 1.0], workers=3, time_limit_s=2.5)
    first, second = grader.describe()
    assert first.startswith("char_count (weight 1): called once per completion")
    assert first.endswith("in up to 3 processes of its own, 2.5 s a call")
    assert second.endswith("in up to 3 processes forked before the model loads, 2.5 s a call")


def test_a_file_that_only_loads_here_is_found_out_before_the_run(tmp_path, pool):
    path = tmp_path / "here.py"
    path.write_text(
        f"import os\nassert os.getpid() == {os.getpid()}, 'elsewhere'\ndef f(completion): return 1\n"
    )
    grader = pool(f"{path}:f")
    with pytest.raises(RewardError, match=r"Reward f can't be loaded in a worker: .*elsewhere.*in_process"):
        grader.check()
    scores = grader.grade(ask("a", "b"))
    assert all("can't be loaded in a worker" in score.failures["f"] for score in scores)


def test_a_file_edited_during_the_run_is_refused_rather_than_mixed(mine, pool):
    grader = pool(f"{mine}:length")
    Path(mine).write_text(MINE.replace("scale * len", "-scale * len"))
    [score] = grader.grade(ask("abc"))
    assert "mine.py was changed while the run was on" in score.failures["length"]


def test_the_number_of_workers_changes_no_result(pool):
    def draws(completion, log_metric):
        time.sleep(0.003 * len(completion))
        log_metric("length", len(completion))
        return random.random()

    texts = ["abcdefgh"[:number] for number in (5, 1, 8, 3, 2, 7, 4, 6)]
    graders = [pool(draws, workers=number) for number in (1, 8)]
    scores = [grader.grade(ask(*texts), step=3) for grader in graders]
    assert scores[0] == scores[1]
    logged = [grader.take_logged().metrics for grader in graders]
    assert logged[0] == logged[1] == {"length": [5, 1, 8, 3, 2, 7, 4, 6]}
    backwards = graders[1].grade(ask(*texts)[::-1], step=3)
    assert backwards == scores[0][::-1]


def test_the_pool_gives_what_the_rewards_give_in_this_process(pool):
    def batch(completions, answer, trainer_state, log_extra):
        log_extra("seen", [messages[0]["content"] for messages in completions])
        return [None if a is None else trainer_state.global_step / a for a in answer]

    async def awaited(completion, prompt, messages, completion_ids):
        await asyncio.sleep(0)
        return len(completion) + len(prompt) + len(messages) + len(completion_ids)

    rewards = load_rewards([batch, awaited, "char_count"], [1.0, 0.5, 0.25])
    asked = [*ask("a", "b.", answer=4), *ask("c", answer=None)]
    pooled, inline = PoolGrader(rewards), InlineGrader(rewards)
    try:
        assert pooled.grade(asked, step=2) == inline.grade(asked, step=2)
        assert pooled.take_logged() == inline.take_logged()
        assert pooled.grade([]) == []
    finally:
        pooled.close()


def test_awaited_rewards_run_at_once_and_one_that_hangs_fails_alone(pool):
    async def wait(completion):
        if completion == "blocks":
            time.sleep(60)
        await asyncio.sleep(60 if completion == "hangs" else 0.2)
        return len(completion)

    grader = pool(wait, time_limit_s=0.8, workers=2)
    begin = time.monotonic()
    scores = grader.grade(ask("a", "hangs", *["bcd"] * 80))
    # One after another they would take two workers 8 s.
    assert time.monotonic() - begin < 7.0
    assert [score.value for score in scores] == [1, None, *[3] * 80]
    assert scores[1].failures == {"wait": "timed out after 0.8 s"}
    scores = grader.grade(ask("a", "blocks", "bc"))
    assert [score.value for score in scores] == [1, None, 2]
    assert scores[1].failures == {"wait": "timed out after 0.8 s"}


def vandal(completion, messages, columns, completion_ids):
    messages[0]["content"] = "changed"
    columns["tags"].append("x")
    completion_ids.clear()
    random.seed(0)
    os.chdir("/")
    os.environ["MUSTER_VANDAL"] = "1"
    os.environ.pop("PATH", None)
    sys.path.clear()
    sys.setrecursionlimit(100)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.alarm(1)
    print("x" * 10_000_000)
    os.write(2, b"y" * 1_000_000)
    return 1.0


def witness(completion, tags):
    return float(len(tags) + 10 * ("MUSTER_VANDAL" in os.environ) + 100 * (os.getcwd() == "/"))


def test_a_reward_changes_neither_the_run_nor_the_next_call(pool, capfd):
    before = (
        os.getcwd(),
        dict(os.environ),
        random.getstate(),
        list(sys.path),
        signal.getsignal(signal.SIGALRM),
    )
    asked = ask("a", "b", tags=["t"])
    grader = pool([vandal, witness], workers=1)
    for _ in range(2):
        assert [score.parts for score in grader.grade(asked)] == [{"vandal": 1.0, "witness": 1.0}] * 2
    after = (
        os.getcwd(),
        dict(os.environ),
        random.getstate(),
        list(sys.path),
        signal.getsignal(signal.SIGALRM),
    )
    assert before == after
    assert asked == ask("a", "b", tags=["t"])
    assert capfd.readouterr() == ("", "")


def test_a_value_that_cannot_be_sent_fails_its_sample_with_the_remedy(pool):
    asked = [*ask("a", thing=1), *ask("b", thing=object())]
    scores = pool(lambda completion, thing: 1.0).grade(asked)
    assert scores[0].value == 1.0
    assert (
        scores[1]
        .failures["lambda"]
        .startswith("was not called: column 'thing' holds object, which can't be sent")
    )
    assert "reward.in_process" in scores[1].failures["lambda"]
    scores = pool(lambda completions, thing: [1.0, 1.0]).grade(asked)
    assert all("failed its whole batch of 2: was not called" in score.failures["lambda"] for score in scores)


def test_any_thread_can_grade(pool):
    def f(completion):
        if completion == "hang":
            time.sleep(60)
        return len(completion)

    grader = pool(f, time_limit_s=0.3, workers=2)
    seen: list[list[float | None]] = []
    threads = [
        threading.Thread(target=lambda: seen.append([s.value for s in grader.grade(ask("hang", "ab", "c"))]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[None, 2, 1]] * 3


@pytest.fixture
def listens_to_ctrl_c():
    """A process started in the background of a script ignores SIGINT, and so would its tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_ctrl_c_during_grading_reaches_the_caller_and_leaves_no_call_behind(pool):
    def f(completion):
        if completion == "interrupt":
            os.kill(main, signal.SIGINT)
            time.sleep(60)
        return 1.0

    main = os.getpid()
    grader = pool(f, workers=2)
    with pytest.raises(KeyboardInterrupt):
        grader.grade(ask("interrupt", "a", "b"))
    assert values(grader, "a") == [1.0]


def test_a_large_completion_crosses_whole(pool):
    grader = pool(lambda completion: len(completion))
    assert values(grader, "é" * 1_000_000, "a") == [1_000_000, 1]
