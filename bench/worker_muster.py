"""A whole run of Muster that takes one step each time it is told to.

`worker_muster.py JOB FOLDER`; the folder takes the run.
"""

import sys
import time
from collections.abc import Generator
from pathlib import Path

from muster.records import StepReport
from muster.run import run
from muster_side import configuration
from talking import Line, Reply
from workloads import read_job


def main(job_path: str, folder: str) -> None:
    """Answers `step` with what the next step took; everything a run does besides is part of it.

    Loading and the self-check are part of the first step, which is a warm-up.
    """
    line = Line()
    reports = run(configuration(read_job(job_path), Path(folder)))
    for _ in line.asked():
        line.reply(take_step(reports))


def take_step(reports: Generator[StepReport]) -> Reply:
    """Seconds of the next step, held-out evaluation apart, and the tokens it was about."""
    start = time.perf_counter()
    report = next(reports)
    whole = time.perf_counter() - start
    eval_s = report.timings.get("eval", 0.0)
    return {
        "step": report.step,
        "seconds": whole - eval_s,
        "phases": {phase: seconds for phase, seconds in report.timings.items() if phase != "eval"},
        "prompt_tokens": [len(group.prompt.ids) for group in report.groups for _ in group.rollouts],
        "completion_tokens": [len(r.completion.ids) for group in report.groups for r in group.rollouts],
        "reward": report.metrics.get("reward"),
        "eval_reward": report.eval.metrics["eval_reward"] if report.eval else None,
        "eval_s": eval_s,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
