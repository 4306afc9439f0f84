"""Measures how long a long run takes to open: `PYTHONPATH=tests python tests/view/measure_opening.py`.

Writes a run of 5,000 steps of 8 x 16 rollouts and asks the system's Chromium, on a fresh page each time, how
long it is from the request to the first curves that are drawn; then how many files of rollouts, and how many
seconds, `muster show` and `muster doctor` take of a run of 128 rollouts of 500 tokens. Prints the median and
the least of some tries; for a machine with nothing else to do.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import sync_playwright
from take_screenshots import served

import view_runs
from muster.doctor.examining import course_of
from muster.store import to_parquet
from muster.view.examining import BUDGET_TOKENS

NUM_STEPS, TRIES = 5_000, 7
LONG_STEPS, LONG_TOKENS = 200, 500
DRAWN = ".chart[data-panel=reward] .drawing .line"


def opening(runs: Path) -> list[float]:
    """Milliseconds from the request to the drawn curve of rewards."""
    with served(runs) as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found: list[float] = []
        for _ in range(TRIES):
            page = chromium.new_page(viewport={"width": 1280, "height": 800})
            start = time.perf_counter()
            page.goto(address, wait_until="commit")
            page.wait_for_selector(DRAWN, state="attached")
            found.append(1000 * (time.perf_counter() - start))
            page.close()
        chromium.close()
    return found


def seconds_of(*words: str) -> list[float]:
    """Of the whole command, tries of it."""
    return [_seconds([sys.executable, "-m", "muster", *words]) for _ in range(3)]


def _seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def write_large_run(folder: Path, *, is_watched: bool) -> Path:
    """A run of 200 steps of 128 rollouts of 500 tokens, all readable; as somebody watched it, or nobody."""
    report = view_runs.large_report(LONG_STEPS, tokens=LONG_TOKENS)
    view_runs.write_long_run(folder, LONG_STEPS, report)
    whole = to_parquet(report.groups, report.traces)
    shutil.rmtree(folder / "rollouts")
    (folder / "rollouts").mkdir()
    for step in range(1, LONG_STEPS + 1):
        (folder / "rollouts" / f"{step:06d}.parquet").write_bytes(whole)
    watched = '{"kind": "start", "watched": true}\n{"kind": "end"}\n'
    (folder / "events.jsonl").write_text(watched if is_watched else '{"kind": "start"}\n{"kind": "end"}\n')
    return folder


def told(name: str, values: Sequence[float], unit: str, digits: int) -> None:
    """Prints a figure."""
    middle, least = statistics.median(values), min(values)
    print(f"{name}: {middle:.{digits}f} {unit} (least {least:.{digits}f}, {len(values)} tries)", flush=True)


def main(place: Path) -> None:
    """Prints all figures."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    view_runs.write_long_run(place / "runs" / "long", NUM_STEPS, view_runs.large_report(NUM_STEPS))
    told(f"request to drawn curves, {NUM_STEPS:,} steps x 128 rollouts", opening(place / "runs"), "ms", 0)
    watched = write_large_run(place / "watched", is_watched=True)
    unwatched = write_large_run(place / "unwatched", is_watched=False)
    some, most = (len(course_of(unwatched, budget).facts) for budget in (BUDGET_TOKENS, None))
    told("muster show, watched, no rollouts read for findings", seconds_of("show", str(watched)), "s", 2)
    told(f"muster show, nobody watched, {some} files", seconds_of("show", str(unwatched)), "s", 2)
    told(f"muster doctor, {most} files", seconds_of("doctor", str(unwatched)), "s", 2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
