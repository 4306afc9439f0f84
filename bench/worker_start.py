"""`muster train` in a process that ends with the first token.

`worker_start.py STARTED ARGUMENTS...` prints the seconds since STARTED (a time of `time.time`) at the first
token of all, which the self-check samples, and at the first one of a rollout.
"""

import json
import os
import sys
import time

from muster.cli import main
from muster.cli.terminal import TrainView


def watch(started: float) -> None:
    """Has the command's own view report the first tokens, then end the process."""
    stamps: dict[str, float] = {}

    def progress(self: TrainView, phase: str, done: int, total: int) -> None:
        if phase in ("sample", "eval") and done:
            stamps.setdefault("first_token_s", time.time() - started)
            if "self_checked_s" in stamps:
                stamps["first_rollout_token_s"] = time.time() - started
                print(json.dumps(stamps), flush=True)
                os._exit(0)

    def say(self: TrainView, text: str) -> None:
        if text.startswith("self-check"):
            stamps["self_checked_s"] = time.time() - started

    TrainView.progress = progress
    TrainView.say = say


if __name__ == "__main__":
    watch(float(sys.argv[1]))
    sys.exit(main(["train", *sys.argv[2:]]))
