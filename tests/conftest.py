"""What every test runs under: offline, one thread, a cache of its own, shapes checked at run time."""

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

os.environ["HF_HUB_OFFLINE"] = "1"
# Tiny matrices are slower on two threads, and thirty times slower where another process wants the core.
os.environ["OMP_NUM_THREADS"] = "1"
# Threads that wait by spinning stand still for seconds once something else wants the processor.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

FIXTURES = Path(__file__).parent / "fixtures"
FRESH = {"envs", "everywhere", "long", "rewards", "safety"}
"""Rooms in which it matters how processes of rewards start and end: there each is a fresh interpreter."""

# A shell starts what it puts in the background with Ctrl-C ignored, which Muster would respect.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shapes that the annotations state are checked in every call that a test makes.
install_import_hook(
    ["muster.algo", "muster.batch", "muster.logprobs", "muster.policy", "muster.update", "muster.engines"],
    "beartype.beartype",
)

settings.register_profile(
    "muster",
    deadline=None,
    max_examples=25,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("muster")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Converted models of tests go to a folder of theirs, unless the caller names one."""
    os.environ.setdefault("MUSTER_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True, scope="session")
def _one_reader() -> Iterator[None]:
    """Exports of all tests are read back by one process: starting Python for each would take minutes."""
    from muster.export import shared_reader

    with shared_reader():
        yield


@pytest.fixture(scope="session")
def _nursery() -> Iterator[Path]:
    from warm_workers import nursery

    with nursery() as address:
        yield address


@pytest.fixture(autouse=True, scope="module")
def _warm_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Processes of rewards are forked from one interpreter that has imported what they import."""
    from functools import partial

    from muster.rewards.pool.launching import CAN_FORK, servers_made_by
    from warm_workers import server_of

    if request.path.relative_to(Path(__file__).parent).parts[0] in FRESH or not CAN_FORK:
        yield
        return
    address: Path = request.getfixturevalue("_nursery")
    with servers_made_by(partial(server_of, address)):
        yield


@pytest.fixture(autouse=True, scope="session")
def _unflushed() -> Iterator[None]:
    """Nothing waits for a disk: no test cuts the power, and each run would flush four dozen times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        yield


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in an empty directory: what it writes by mistake is seen nowhere."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a saved tiny model, under `model`, for runs to start from."""
    from tiny import save_tiny_model

    folder = tmp_path_factory.mktemp("place")
    save_tiny_model(folder / "model")
    return folder


@pytest.fixture
def recorded() -> Path:
    """The run that was recorded in format 1."""
    return FIXTURES / "run_v1"


@pytest.fixture
def reports() -> list[Any]:
    """What was written into it."""
    make: Callable[[], list[Any]] = runpy.run_path(str(FIXTURES / "make_run_v1.py"))["reports"]
    return make()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk, on Linux")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def fakes() -> Iterator[list[Any]]:
    """Two servers that speak vLLM's HTTP, on the policy that a run begins with."""
    from fake_vllm import FakeVllm, start_policy

    made = [FakeVllm(start_policy), FakeVllm(start_policy)]
    yield made
    for fake in made:
        fake.stop()
