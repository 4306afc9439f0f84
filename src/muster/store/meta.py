"""What a run ran on and with: the content of `meta.json`."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from muster.redaction import redacted_command

_PACKAGES = ("muster-rl", "torch", "transformers", "tokenizers", "peft", "safetensors", "numpy", "pyarrow")


def collect_meta(command: Sequence[str]) -> dict[str, object]:
    """Versions, git revision of the current directory, hardware, time and command line.

    What only torch knows (the GPU) is for the caller to add.
    """
    return {
        "command": redacted_command(command),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "git": _git_revision(Path()),
        "hardware": {
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_revision(folder: Path) -> str | None:
    """The commit that is checked out, with `+changes` where files differ from it; None outside git."""
    revision = _git(folder, "rev-parse", "HEAD")
    if revision is None:
        return None
    return f"{revision}+changes" if _git(folder, "status", "--porcelain", "-uno") else revision


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            timeout=10,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()
