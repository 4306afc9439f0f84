"""Which walls stand around a program on this system, found by running one behind them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from muster.errors import RewardError
from muster.sandbox.limits import Limits
from muster.sandbox.running import run_program
from muster.sandbox.walls import NUM_USERS, Isolation

Demand = Literal["any", "bubblewrap"]
"""The weakest isolation that will do."""

_ANSWER = "42"
_PROBE_S = 20.0


def isolation(demand: Demand = "any") -> str:
    """Which isolation is in force for model-written code, as text for people and `meta.json`."""
    return str(find_isolation(demand))


def find_isolation(demand: Demand = "any") -> Isolation:
    """The strongest isolation that works here; RewardError where there is none that will do."""
    found = _strongest()
    if found is None:
        raise RewardError(
            "Model-written code can't be run here: bubblewrap doesn't work, and as root there is no other "
            "user to change to, or no Python that such a user may read (on Windows: no limits on processes). "
            "Install bubblewrap, or run as a plain user."
        )
    if demand == "bubblewrap" and found.bubblewrap is None:
        raise RewardError(
            'Model-written code is to run under bubblewrap only (isolation = "bubblewrap"), which is '
            f"{'not installed' if shutil.which('bwrap') is None else 'installed but fails'} here. Install "
            'bubblewrap 0.8 or newer and allow user namespaces, or accept weaker isolation with "any".'
        )
    return found


@cache
def _strongest() -> Isolation | None:
    return next((candidate for candidate in candidates() if _works(candidate)), None)


def candidates() -> Iterator[Isolation]:
    """Ways that could work here, the strongest first."""
    if sys.platform == "win32":
        return
    tool = shutil.which("bwrap")
    user = _first_free_user() if os.getuid() == 0 else None
    if tool:
        yield from (Isolation(bubblewrap=tool, first_user=user, python=python) for python in _interpreters())
    if os.getuid() != 0 or user is not None:
        yield from (Isolation(bubblewrap=None, first_user=user, python=python) for python in _interpreters())


def _works(candidate: Isolation) -> bool:
    """A program that prints a number does so behind these walls."""
    try:
        outcome = run_program(
            {"program.py": f"print({_ANSWER})"}, limits=Limits(wall_s=_PROBE_S), isolation=candidate
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return outcome.is_success and outcome.stdout.strip() == _ANSWER


def _interpreters() -> list[str]:
    """The interpreter of this process, outside of its virtual environment, then the system's."""
    own = str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())
    others = [path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()]
    return list(dict.fromkeys([own, *(str(Path(path).resolve()) for path in others)]))


def _first_free_user() -> int | None:
    """The first of a million user numbers far above those in use; None where so many aren't mapped."""
    try:
        lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    except OSError:
        return 2_000_000_000
    ends = [int(first) + int(count) for first, _, count in map(str.split, lines)]
    start = min(2_000_000_000, max(ends, default=0) - NUM_USERS)
    return start if start > 0 else None
