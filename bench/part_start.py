"""Part `start`: from the start of `muster train` to the first sampled token, the model being cached."""

import json
import subprocess
import sys
import tempfile
import time

from keeping import Settings, save, say
from muster_side import HERE
from workloads import EXAMPLES

ROUNDS = 3


def measure(settings: Settings) -> None:
    """Starts the demo some times in a process of its own; the first start warms the file cache."""
    rounds = settings.rounds_or(ROUNDS)
    stamps: list[dict[str, float]] = []
    for number in range(rounds + 1):
        stamp = _start(settings)
        kind = "warm-up, not counted" if number == 0 else f"round {number}/{rounds}"
        say(f"start: first token of a rollout after {stamp['first_rollout_token_s']:.1f} s ({kind})")
        if number:
            stamps.append(stamp)
    save(settings, "start", {name: [stamp[name] for stamp in stamps] for name in stamps[0]})


def _start(settings: Settings) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=settings.work) as runs:
        command = [
            sys.executable,
            str(HERE / "worker_start.py"),
            str(time.time()),
            str(EXAMPLES / "json_extraction.toml"),
            "--run.dir",
            runs,
            "--run.threads",
            str(settings.threads),
            "--model.path",
            settings.model_name,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"muster train ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
