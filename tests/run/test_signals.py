"""Ctrl-C and SIGTERM wherever a run is: the first ends the step and saves, the second leaves at once."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from killing import content
from muster import checkpoint
from muster.cli import main
from muster.cli.stopping import SecondSignal, Stopping
from muster.config import Config
from muster.run import Watchers, run
from muster.store import read_events, read_metrics, read_rollouts, was_stopped
from tiny import save_tiny_model
from toy_run import config_for, write_rows

PHASES = ("sample", "score", "forward", "save", "eval")
"""Sampling, inside a reward, updating, saving, evaluating."""
SECTIONS = {
    "run": {"steps": 3, "save_every": 1, "keep": 2, "threads": 1},
    "algo": {"minibatches": 2},
    "sampling": {"sync_every": 2},
    "eval": {"every": 1, "at_start": False},
    "engine": {"options": {"products": "linear"}},
}


def settings(place: Path) -> Config:
    """In the current directory, so that two runs have the same configuration."""
    return config_for(place, Path("runs"), **SECTIONS)


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run leaves that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    os.chdir(folder)
    list(run(settings(place)))
    return content(folder / "runs" / "toy")


def at_phase(name: str, times: int, act: Callable[[], None]) -> Callable[[str, int, int], None]:
    """Acts when the run comes to this phase for the so-manieth time."""
    left = iter(range(times - 1))

    def progress(phase: str, done: int, total: int) -> None:
        if phase == name and done == 0 and next(left, None) is None:
            act()

    return progress


def drive(config: Config, stopping: Stopping, act: Callable[[str, int, int], None]) -> list[int]:
    watchers = Watchers(progress=act, should_stop=stopping.is_requested)
    return [report.step for report in run(config, watchers=watchers)]


@pytest.mark.parametrize("phase", PHASES)
def test_the_first_signal_ends_the_step_and_saves(
    place: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
):  # P2
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "toy"
    sent: list[int] = []

    def once() -> None:
        if not sent:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGTERM)

    with Stopping(lambda _: None) as stopping:
        steps = drive(settings(place), stopping, at_phase(phase, 1, once))
        assert stopping.exit_code == 143
    # Saving step 1 is over before it is asked whether to stop.
    assert steps == ([1, 2] if phase == "save" else [1])
    assert was_stopped(folder)
    found, skipped = checkpoint.find(folder / "checkpoints")
    assert (found, skipped) == (folder / "checkpoints" / f"00000{len(steps)}", [])
    list(run(settings(place), resume=True))
    assert content(folder) == whole
    assert not was_stopped(folder)


@pytest.mark.parametrize("phase", PHASES)
def test_the_second_signal_leaves_at_once_and_no_file_is_torn(
    place: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
):  # P2
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "toy"

    def send_two() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with Stopping(lambda _: None) as stopping, pytest.raises(SecondSignal) as caught:
        drive(settings(place), stopping, at_phase(phase, 2, send_two))
    assert caught.value.exit_code == 130
    for line in read_metrics(folder):
        read_rollouts(folder, line["step"])
    assert checkpoint.find(folder / "checkpoints")[1] == []
    list(run(settings(place), resume=True))
    assert content(folder) == whole


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose reward says when it is at work, and takes a moment."""
    save_tiny_model(tmp_path / "model")
    write_rows(tmp_path / "rows.jsonl", ["one", "two"])
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n\n\n"
        "def slow(completion: str) -> float:\n"
        f"    Path({str(tmp_path / 'at_work')!r}).touch()\n"
        "    time.sleep(0.05)\n    return float(len(completion))\n"
    )
    (tmp_path / "run.toml").write_text(
        '[model]\npath = "model"\nmax_tokens = 64\n[data]\npath = "rows.jsonl"\n'
        '[reward]\nuse = "slow.py:slow"\nworkers = 1\n'
        "[sampling]\nprompts_per_step = 1\ngroup_size = 2\nmax_tokens = 4\n"
        '[engine.options]\nproducts = "linear"\n[run]\nname = "r"\nsteps = 40\nthreads = 1\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("number", "flags", "code"),
    [(signal.SIGINT, [], 130), (signal.SIGTERM, [], 143), (signal.SIGTERM, ["--requeue"], 75)],
)
def test_a_command_says_by_its_exit_code_how_it_was_stopped(
    project: Path, number: signal.Signals, flags: list[str], code: int
):  # P2
    with started(["train", "run.toml", *flags], project / "at_work") as command:
        os.kill(command.process, number)
        assert command.exit_code() == code
    assert was_stopped(project / "runs" / "r")
    assert checkpoint.find(project / "runs" / "r" / "checkpoints")[0] is not None
    if flags:
        # The same command again goes on with the run that is there.
        step = read_metrics(project / "runs" / "r")[-1]["step"]
        assert main(["train", "run.toml", *flags, "--run.steps", str(step + 1)]) == 0
        assert [event["kind"] for event in read_events(project / "runs" / "r")].count("resume") == 1


def test_an_ignored_ctrl_c_stays_ignored(project: Path):
    """As under nohup, or in the background of a script."""
    with started(["train", "run.toml", "--run.steps", "3"], project / "at_work", ignores=True) as command:
        os.kill(command.process, signal.SIGINT)
        assert command.exit_code() == 0
    assert read_events(project / "runs" / "r")[-1]["kind"] == "end"


def test_requeue_needs_a_name_to_find_its_run_by(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "run.toml", "--run.name", "null", "--requeue"]) == 2
    assert "--requeue needs a name" in capsys.readouterr().err


class Command:
    """A process of `muster`."""

    def __init__(self, process: int) -> None:
        self.process = process

    def exit_code(self) -> int:
        """Waits for its end."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        self.process = 0
        return code


class started:  # noqa: N801 (reads as a statement)
    """The command in a forked process, once the file is there that says it is at work."""

    def __init__(self, arguments: list[str], at_work: Path, *, ignores: bool = False) -> None:
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN if ignores else signal.default_int_handler)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            code = 99
            try:
                code = main(arguments)
            finally:
                os._exit(code)
        self.command = Command(process)
        end = time.monotonic() + 120
        while not at_work.exists() and time.monotonic() < end:
            time.sleep(0.01)

    def __enter__(self) -> Command:
        return self.command

    def __exit__(self, *_: object) -> None:
        if self.command.process:
            os.kill(self.command.process, signal.SIGKILL)
            os.waitpid(self.command.process, 0)
