"""What is over its time is gone, with all that it started, and leaves nothing behind in the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asking import ask
from muster.rewards import PoolGrader, load_rewards
from muster.rewards.pool.trees import descendants

HAS_PROC = Path("/proc/self/task").is_dir()
needs_proc = pytest.mark.skipif(not HAS_PROC, reason="processes are listed through /proc")


def is_running(pid: int) -> bool:
    """The process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_reward_that_sleeps_ten_seconds_under_a_limit_of_one_is_marked_and_the_rest_is_scored():  # B39
    def f(completion):
        time.sleep(10 if completion == "slow" else 0)
        return 1.0

    grader = PoolGrader(load_rewards(f), time_limit_s=1.0)
    begin = time.monotonic()
    scores = grader.grade(ask("a", "slow", "b"))
    assert time.monotonic() - begin < 9.0
    assert [score.value for score in scores] == [1.0, None, 1.0]
    assert scores[1].failures == {"f": "timed out after 1 s"}
    grader.close()


def start_family(folder: str) -> None:
    """A child, a grandchild in a session of its own, and an orphan; none of them ever ends by itself."""
    note = f"import os, sys, time; open(os.path.join({folder!r}, str(os.getpid())), 'w'); "
    signals = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    sleep = f"{signals}{note}time.sleep(600)"
    own_session = (
        f"import subprocess; subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session=True); "
    )
    subprocess.Popen([sys.executable, "-c", note + own_session + "time.sleep(600)"])
    subprocess.Popen([sys.executable, "-c", f"import sys; {own_session}"])  # ends at once, its child stays
    while len(os.listdir(folder)) < 3:
        time.sleep(0.01)


@needs_proc
@pytest.mark.parametrize("then", ["hangs", "ends", "returns"])
def test_what_a_reward_started_is_ended_with_its_worker(tmp_path, then):
    def f(completion, folder):
        start_family(folder)
        if then == "ends":
            os._exit(1)
        while then == "hangs":
            time.sleep(1)
        return 1.0

    grader = PoolGrader(load_rewards(f), time_limit_s=3.0, workers=1)
    [score] = grader.grade(ask("a", folder=str(tmp_path)))
    family = [int(name) for name in os.listdir(tmp_path)]
    assert len(family) == 3
    if then == "returns":
        assert score.value == 1.0
        grader.close()
    else:
        assert score.is_failure
    assert [pid for pid in family if is_running(pid)] == []
    grader.close()


@needs_proc
def test_a_fork_bomb_is_put_out():
    def f(completion):
        while True:
            if len(descendants(root)) < 60 and os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)

    root = os.getpid()
    before = descendants(root)
    grader = PoolGrader(load_rewards(f), time_limit_s=0.5, workers=1)
    [score] = grader.grade(ask("a"))
    assert score.failures == {"f": "timed out after 0.5 s"}
    assert len(descendants(root) - before) <= 1  # the fork server
    grader.close()
    assert descendants(root) == before


def hang(completion):
    time.sleep(60)


def census() -> dict[str, int]:
    """What this process holds."""
    me = os.getpid()
    return {
        "processes": len(descendants(me)),
        "threads": len(os.listdir(f"/proc/{me}/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def after_time_outs(count: int, use: object, limit_s: float, workers: int) -> dict[str, object]:
    """What there is before a pool is made, after this many of its calls timed out, and when it is closed."""
    before = census()
    grader = PoolGrader(load_rewards(use), time_limit_s=limit_s, workers=workers)  # pyright: ignore[reportArgumentType]
    grader.check()
    begin = time.monotonic()
    scores = grader.grade(ask(*["a"] * count))
    seconds = time.monotonic() - begin
    assert {reason for score in scores for reason in score.failures.values()} == {
        f"timed out after {limit_s:g} s"
    }
    over = census()
    grader.close()
    return {"before": before, "over": over, "after": census(), "seconds": seconds}


@needs_proc
@pytest.mark.parametrize("named", [True, False])
def test_nothing_is_left_after_fifty_time_outs(tmp_path, named):  # P10
    path = tmp_path / "hanging.py"
    path.write_text("import time\ndef hang(completion): time.sleep(60)\n")
    figures = after_time_outs(50, f"{path}:hang" if named else hang, 0.05, 8)
    before = census()
    assert figures["after"] == before
    # The process that starts workers, and the line to it.
    server = {"processes": before["processes"] + 1, "descriptors": before["descriptors"] + 1}
    assert figures["over"] == before | server


@needs_proc
@pytest.mark.slow
def test_nothing_is_left_after_a_thousand_time_outs(tmp_path, capsys):  # P10
    path = tmp_path / "hanging.py"
    path.write_text("import time\ndef hang(completion): time.sleep(60)\n")
    figures = after_time_outs(1000, f"{path}:hang", 0.05, 16)
    with capsys.disabled():
        print(figures)
    assert figures["after"] == figures["before"]
