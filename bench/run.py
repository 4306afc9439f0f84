"""Measures Muster against TRL on this machine, part by part.

`python bench/run.py --help` lists the parts. Each part writes bench/results/PART.json, and bench/RESULTS.md
is rendered from all there are. A part that has a result is passed over, so a run that was cut short goes on
where it stopped.
"""

import argparse
import importlib
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from company import Watch
from keeping import RESULTS, Settings, load, say
from muster.pretrained import resolve
from rendering import write_report

PARTS = ("gradient", "update", "sampling", "start", "curves", "profile", "steps", "target")
"""What `all` measures, in this order: short ones first."""
CHOICES = (*PARTS, "memory", "footprint", "vllm", "batching", "report", "all")
GOING_ON = ("steps", "footprint")
"""Parts that measure what their result lacks."""
EMBEDDED = "smollm2-135m-instruct"


def main(arguments: list[str]) -> int:
    """Runs the parts that were asked for; 1 where one failed."""
    asked = _parser().parse_args(arguments)
    parts = list(dict.fromkeys(part for name in asked.parts for part in (PARTS if name == "all" else [name])))
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as work:
        settings = Settings(
            model=resolve(asked.model, say),
            model_name=asked.model,
            rounds=asked.rounds,
            max_steps=asked.steps,
            threads=asked.threads,
            results=asked.results.resolve(),
            work=Path(work),
            again=asked.again,
            watch=Watch.start(),
        )
        for part in parts:
            try:
                _measure(part, settings)
            except Exception as error:
                # A part that fails costs that part: the others are still measured.
                failed.append(part)
                say(f"{part} FAILED: {type(error).__name__}: {error}")
            write_report(settings.results)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _measure(part: str, settings: Settings) -> None:
    """One part, unless there is a result of it already."""
    if part == "report":
        return
    if part == "memory":
        # Peaks are read off the same processes whose steps are timed.
        part = "steps"
    if part not in GOING_ON and not settings.again and load(settings.results, part) is not None:
        say(f"{part}: measured before, kept (--again measures it anew)")
        return
    start = time.perf_counter()
    say(f"{part}: starts")
    settings = replace(settings, watch=Watch.start())
    importlib.import_module(f"part_{part}").measure(settings)
    others = settings.watch.others_share()
    company = "" if others is None else f"; other processes took {others:.0%} of the machine meanwhile"
    say(f"{part}: done in {time.perf_counter() - start:.0f} s{company}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description="Measures Muster against TRL on this machine, part by part."
    )
    parser.add_argument("parts", nargs="+", choices=CHOICES, metavar="PART", help=", ".join(CHOICES))
    parser.add_argument("--rounds", type=int, help="measured rounds of every part; without it, each its own")
    parser.add_argument("--again", action="store_true", help="measure also what there is a result of")
    parser.add_argument("--steps", type=int, default=24, help="after which the part target gives up")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of every process")
    parser.add_argument("--model", default=EMBEDDED, help="as model.path; the embedded one without it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
