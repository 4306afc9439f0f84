"""Rewards that misbehave at the first, a middle, the last or every completion: failures with their reason."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy
import pytest

from asking import ask
from muster.rewards import PoolGrader, load_rewards
from muster.rewards.pool.channel import MAX_REPLY_BYTES

LIMIT_S = 0.8


def hang() -> float:
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(60)


async def awaited() -> float:
    return 1.0


def close_all() -> float:
    os.closerange(3, 1000)
    return 1.0


def flood() -> str:
    for _ in range(200):
        os.write(1, b"x" * 100_000)
    print("y" * 1_000_000, file=sys.stderr)
    return "flooded"


def exhaust_memory() -> float:
    resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
    return float(len(bytearray(2**40)))


def come_back_twice() -> float:
    """Forks, and returns in both processes: the second answer must not be taken for the next call's."""
    os.fork()
    return float("nan")


def exit_in_thread() -> float:
    threading.Thread(target=lambda: os._exit(7)).start()
    time.sleep(60)
    return 1.0


def shout_on_every_socket() -> float:
    for descriptor in range(3, 64):
        try:
            with socket.socket(fileno=os.dup(descriptor)) as found:
                found.sendall(b'{"id": 1, "verdicts": [9.0], "metrics": {}, "extras": {}}\n')
        except OSError:
            pass
    return "shouted"  # pyright: ignore[reportReturnType]


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "raises": (lambda: 1 / 0, "raised ZeroDivisionError: division by zero (test_bad_rewards.py, line"),
    "hangs": (hang, f"timed out after {LIMIT_S} s"),
    "spins": (lambda: sum(iter(int, 1)), f"timed out after {LIMIT_S} s"),
    "NaN": (lambda: float("nan"), "gave NaN"),
    "infinity": (lambda: -float("inf"), "gave a number beyond"),
    "text": (lambda: "1.0", "gave str '1.0'"),
    "list": (lambda: [1.0], "gave list [1.0]"),
    "array": (lambda: numpy.zeros(3), "gave ndarray"),
    "huge number": (lambda: 10**10_000, "gave a number beyond"),
    "huge value": (lambda: "x" * 50_000_000, "gave str 'xxx"),
    "coroutine of a coroutine": (lambda: [awaited()][0].__await__(), "gave coroutine_wrapper"),
    "exit": (lambda: sys.exit(3), "raised SystemExit: 3"),
    "end of process": (lambda: os._exit(3), "ended its process with exit code 3"),
    "end of process from a thread": (exit_in_thread, "ended its process with exit code 7"),
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL; perhaps memory ran out"),
    "alarm": (lambda: [signal.setitimer(signal.ITIMER_REAL, 0.05), time.sleep(60)], "was ended by SIGALRM"),
    "interrupt": (lambda: os.kill(os.getpid(), signal.SIGINT), "raised KeyboardInterrupt"),
    "cancelled": (lambda: (_ for _ in ()).throw(asyncio.CancelledError()), "raised CancelledError"),
    "closed line": (close_all, "closed the line to its process"),
    "flood": (flood, "gave str 'flooded'"),
    "memory": (exhaust_memory, "raised MemoryError"),
    "forks": (come_back_twice, "gave NaN"),
    "shouts": (shout_on_every_socket, "wrote to the line what is not its own"),
    "recursion": (lambda: BAD["recursion"][0](), "raised RecursionError"),
}


def misbehave(completion: str) -> object:
    return BAD[completion][0]() if completion in BAD else 1.0


@pytest.fixture(scope="module")
def grader() -> Iterator[PoolGrader]:
    made = PoolGrader(load_rewards(misbehave), time_limit_s=LIMIT_S, workers=3)
    yield made
    made.close()


@pytest.mark.parametrize("places", [(0,), (1,), (2,), (0, 1, 2)], ids=["first", "middle", "last", "all"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reward_fails_its_own_completions_and_the_rest_are_scored(grader, kind, places):  # P9
    texts = [kind if place in places else "fine" for place in range(3)]
    scores = grader.grade(ask(*texts))
    for place, score in enumerate(scores):
        if place in places:
            assert (score.value, score.parts) == (None, {"misbehave": None})
            assert BAD[kind][1] in score.failures["misbehave"]
        else:
            assert (score.value, score.failures) == (1.0, {})


@pytest.mark.parametrize(
    ("given", "number"), [(True, 1.0), (numpy.float32(0.5), 0.5), (numpy.array(2), 2.0), (None, None)]
)
def test_what_is_a_number_or_an_abstention_is_no_failure(given, number):
    grader = PoolGrader(load_rewards(lambda completion: given), workers=1)
    [score] = grader.grade(ask("a"))
    grader.close()
    assert (score.value, score.failures) == (number, {})


def hang_in_a_shell(completions: list[str]) -> list[float]:
    subprocess.run(["sleep", "60"], check=True)
    return [1.0 for _ in completions]


def note_too_much(completions: list[str], log_extra: Callable[[str, list[str]], None]) -> list[float]:
    log_extra("seen", ["x" * MAX_REPLY_BYTES])
    return [1.0 for _ in completions]


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (lambda completions: 1 / 0, "raised ZeroDivisionError"),
        (lambda completions: [1.0], "gave 1 values for 3 completions"),
        (lambda completions: None, "gave NoneType None"),
        (lambda completions: os._exit(0), "ended its process with exit code 0"),
        (hang_in_a_shell, f"timed out after {LIMIT_S} s"),
        (note_too_much, "noted more than 16 MB"),
    ],
)
def test_a_batch_reward_that_fails_fails_its_whole_batch_and_says_so(batch, says):
    grader = PoolGrader(load_rewards([batch, "char_count"]), time_limit_s=LIMIT_S)
    scores = grader.grade(ask("a.", "b", "c"))
    grader.close()
    [name] = scores[0].failures
    assert all(score.failures[name].startswith("failed its whole batch of 3: ") for score in scores)
    assert all(says in score.failures[name] for score in scores)
    assert [score.parts["char_count"] for score in scores] == [1.0, 0.0, 0.0]


def test_the_process_that_starts_workers_may_be_killed(tmp_path):
    path = tmp_path / "regicide.py"
    path.write_text(
        "import os, signal, time\n"
        "def f(completion):\n"
        "    if completion == 'kill':\n"
        "        os.kill(os.getppid(), signal.SIGKILL)\n"
        "        time.sleep(60)\n"
        "    return 1.0\n"
    )
    grader = PoolGrader(load_rewards(f"{path}:f"), workers=1, time_limit_s=LIMIT_S)
    scores = grader.grade(ask("a", "kill", "b"))
    grader.close()
    assert [score.value for score in scores] == [1.0, None, 1.0]
