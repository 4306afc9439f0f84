"""Train two steps, show and resume where things are unlike a developer's machine (P32)."""

import contextlib
import ctypes
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import muster
from muster.cli import main
from muster.converted import make_private
from muster.errors import ModelError
from muster.store import read_events, read_metrics
from tiny import save_tiny_model
from tiny_gguf import write_tiny_gguf
from toy_run import write_rows

TESTS = Path(__file__).parents[1]
ODD = "a place with spaces, ünïcode 连续 and 'quotes'"
IS_ROOT = getattr(os, "geteuid", lambda: 1)() == 0
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="each run is a fork of this process")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("everywhere") / "model")


@pytest.fixture
def place(model: Path, tmp_path: Path) -> Path:
    """A folder with an odd name that holds all that a run needs."""
    folder = tmp_path / ODD
    folder.mkdir()
    shutil.copytree(model, folder / "mödel (1)")
    write_rows(folder / "prömpts.jsonl", ["größe", "连续", "مرحبا", "🙂"])
    (folder / "toy_grade.py").write_text(
        "def short(completion: str) -> float:\n    return 1.0 / (1 + len(completion))\n", encoding="utf-8"
    )
    (folder / "rün.toml").write_text(
        """
[model]
path = "mödel (1)"
max_tokens = 128
[data]
path = "prömpts.jsonl"
[reward]
use = "toy_grade.py:short"
workers = 1
[sampling]
group_size = 3
max_tokens = 4
[run]
name = "ein Lauf — 1"
steps = 2
save_every = 1
threads = 1
""",
        encoding="utf-8",
    )
    return folder


def life() -> dict[str, str]:
    """Trains, shows and resumes in the current directory; what the three printed."""
    printed: dict[str, str] = {}
    calls = {
        "train": ["train", "rün.toml", "--table-every", "1"],
        "show": ["show", "ein Lauf — 1"],
        "resume": ["train", "rün.toml", "--resume", "--run.steps", "3"],
    }
    for name, arguments in calls.items():
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        assert code == 0, err.getvalue()
        printed[name] = out.getvalue() + err.getvalue()
    return printed


def in_a_fork(call: Callable[[], object], log: Path) -> None:
    """Calls in a process forked from this one, which has torch; what it raises or says goes to the log."""
    with log.open("wb") as said:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(said.fileno(), 2)
                call()
                code = 0
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
    assert status == 0, log.read_bytes().decode("utf-8", "replace")[-3_000:]


def check_run(run: Path) -> None:
    """The run is whole: its steps once each, its model written."""
    assert [line["step"] for line in read_metrics(run)] == [1, 2, 3]
    assert [event["kind"] for event in read_events(run)].count("end") == 2
    assert (run / "final" / "model.safetensors").is_file()
    for path in run.glob("*.jsonl"):
        assert all(json.loads(line) for line in path.read_bytes().decode("ascii").splitlines())


def plain() -> None:
    """Nothing is odd but the names."""


def narrow_mask() -> None:
    os.umask(0o077)


def one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def dumb_terminal() -> None:
    os.environ.update(TERM="dumb", COLUMNS="20", NO_COLOR="1")


def no_home() -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME", "LANG"):
        os.environ.pop(name, None)


def other_zone() -> None:
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()


def few_descriptors() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


@needs_fork
@pytest.mark.parametrize(
    "odd", [plain, narrow_mask, one_core, dumb_terminal, no_home, other_zone, few_descriptors],
    ids=lambda odd: odd.__name__,
)  # fmt: skip
def test_a_run_lives_its_life(odd: Callable[[], None], place: Path, tmp_path: Path):
    def call() -> None:
        odd()
        os.chdir(place)
        printed = life()
        assert "ein Lauf — 1" in printed["show"]

    in_a_fork(call, tmp_path / "log")
    check_run(place / "runs" / "ein Lauf — 1")
    if odd is narrow_mask:
        modes = {path.stat().st_mode & 0o077 for path in (place / "runs").rglob("*")}
        assert modes == {0}


@needs_fork
@pytest.mark.skipif(
    sys.platform != "linux" and IS_ROOT, reason="root gives up a right of its own by a call of Linux"
)
def test_who_may_write_neither_home_nor_cache_is_told_and_can_train(place: Path, tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    (tmp_path / "temporary").mkdir()
    write_tiny_gguf(place / "m.gguf")

    def call() -> None:
        keep_to_modes()
        os.environ["HOME"] = str(home)
        tempfile.tempdir = str(tmp_path / "temporary")
        for name in ("MUSTER_CACHE", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)
        os.chdir(place)
        life()
        err = io.StringIO()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            code = main(["train", "rün.toml", "--model.path", "m.gguf", "--run.name", "converted"])
        assert code == 0, err.getvalue()
        assert f"the cache {home}/.cache/muster can't be written (Permission denied)" in err.getvalue()
        [cache] = (tmp_path / "temporary").glob("muster-*")
        assert cache.stat().st_mode & 0o777 == 0o700
        assert list(home.iterdir()) == []

    in_a_fork(call, tmp_path / "log")
    check_run(place / "runs" / "ein Lauf — 1")


def test_a_cache_that_others_may_write_is_not_trusted(tmp_path: Path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(ModelError, match="is not a folder that only you may write"):
            make_private(tmp_path / name)


def keep_to_modes() -> None:
    """Gives up root's right to pass over the modes of files; others have none such."""
    if not IS_ROOT:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    rights = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, rights) == 0
    for place in (0, 1, 2):
        rights[place] &= ~0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    assert libc.capset(header, rights) == 0


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "de_DE.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"},
    ],
    ids=["C", "latin-1"],
)
def test_a_locale_that_is_not_utf8_changes_no_file(locale: dict[str, str], place: Path, tmp_path: Path):
    plain = tmp_path / "with spaces"
    shutil.copytree(place, plain)
    (plain / "mödel (1)").rename(plain / "model (1)")
    (plain / "prömpts.jsonl").rename(plain / "prompts.jsonl")
    text = (plain / "rün.toml").read_text(encoding="utf-8")
    for odd, name in {"mödel": "model", "prömpts": "prompts", "ein Lauf — 1": "a run"}.items():
        text = text.replace(odd, name)
    (plain / "run.toml").write_text(text.replace("[data]", '[data]\nsystem = "über 连续"'), encoding="utf-8")
    calls = [
        ["train", "run.toml", "--table-every", "1"],
        ["show", "a run"],
        ["show", "a run", "--prompts"],
        ["train", "run.toml", "--resume", "--run.steps", "3"],
        ["train", "run.toml", "--run.name", "ünï"],
    ]
    program = f"import sys\nfrom muster.cli import main\nprint([main(call) for call in {calls!a}])"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    paths = [str(Path(muster.__file__).parents[1]), str(TESTS)]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **locale, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=plain,
        capture_output=True,
        check=False,
    )
    said = done.stderr.decode("latin-1")
    # In latin-1 the odd name is one that a file may have; in ASCII it is refused with the way out.
    ends = done.stdout.splitlines()[-1]
    assert ends in (b"[0, 0, 0, 0, 0]", b"[0, 0, 0, 0, 1]"), said
    assert ends.endswith(b"0]") or "PYTHONUTF8=1" in said, said
    assert "Traceback" not in said
    assert b"gr\\xf6\\xdfe" in done.stdout or "größe".encode("latin-1") in done.stdout
    check_run(plain / "runs" / "a run")
    assert 'system = "über 连续"' in (plain / "runs" / "a run" / "config.toml").read_text(encoding="utf-8")
