"""`make torture`: a run killed at random times, after every file operation, twice in a row, while resuming.

Each run that was killed is resumed and compared with one that was not, byte for byte. Prints what was done
and what differs; exits with 1 where anything does.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

import torch

from killing import VARIANTS, Torture, make_place, random_times


def torture(case: Torture, num_random: int, stride: int, seed: int) -> None:
    """Every kind of kill on one variant; `stride` takes every so many operations."""
    generator = random.Random(seed)
    for seconds in random_times(seed, num_random, case.seconds):
        case.survive({"after_s": seconds})
    for seconds in random_times(seed + 1, num_random // 2, case.seconds):
        case.survive({"after_s": seconds}, {"after_s": generator.uniform(0, case.seconds)})
    _say(case, f"killed at {num_random} random times, and at {num_random // 2} twice")
    operations = range(1 + seed % stride, case.num_operations + 1, stride)
    for at in operations:
        case.survive({"at": at})
    _say(case, f"killed at each of {len(operations)} of {case.num_operations} operations")
    for at in operations:
        case.survive({"at": at}, {"at": generator.randint(1, 30)})
    _say(case, "the same, and again while the resume went on")
    for at in operations:
        case.survive({"at": at, "power": 1})
    _say(case, "lost power at each of them")


def _say(case: Torture, what: str) -> None:
    print(f"{case.variant}: {what}; so far {case.count}", flush=True)


def main() -> int:
    """Tortures every variant; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=50, help="random times per variant")
    parser.add_argument("--stride", type=int, default=1, help="take every so many file operations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    differences: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MUSTER_CACHE"] = str(Path(folder) / "cache")
        place = make_place(Path(folder) / "place")
        for number, variant in enumerate(options.variants):
            case = Torture(place, Path(folder) / variant.replace(" ", "_"), variant)
            print(f"{variant}: {case.num_operations} file operations, {case.seconds:.1f} s", flush=True)
            torture(case, options.random, options.stride, options.seed + number)
            differences += case.count.differences
    print(f"{len(differences)} differences, {time.monotonic() - started:.0f} s")
    for text in differences:
        print(text)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
