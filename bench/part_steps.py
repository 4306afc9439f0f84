"""Part `steps`: seconds of a step and peak of memory, TRL and Muster in turn, each in a warm process."""

from collections.abc import Mapping
from pathlib import Path

import torch

from keeping import Data, Settings, load, save, say
from machine import forward_products_s, sampling_products_s, update_products_s
from muster.pretrained import load_model, load_tokenizer
from talking import Reply, Worker
from workloads import NEW_TOKENS, WORKLOADS, Job, Workload, exact_prompts, write_prompts

SCRIPTS = {"muster": "worker_muster.py", "trl": "worker_trl.py"}
Told = dict[str, list[Reply]]
"""Replies by side, in the order of the rounds."""


def measure(settings: Settings) -> None:
    """Every workload; one that is done already stays, unless asked for again."""
    done: Data = {} if settings.again else (load(settings.results, "steps") or {})
    for workload in WORKLOADS:
        if workload.name in done:
            say(f"steps {workload.name}: measured before, kept")
            continue
        done[workload.name] = _workload(workload, settings)
        save(settings, "steps", done)


def _workload(workload: Workload, settings: Settings) -> Data:
    tokenizer = load_tokenizer(settings.model)
    texts = exact_prompts(tokenizer, workload.num_prompts, workload.prompt_tokens)
    data = write_prompts(settings.work / f"{workload.name}.jsonl", texts)
    job = workload.job(settings.model, data, settings.threads)
    rounds = settings.rounds_or(workload.rounds)
    workers = start(job, settings.work)
    told: Told = {side: [] for side in workers}
    try:
        for number in range(rounds + 1):
            for side, worker in workers.items():
                reply = worker.ask("step")
                check_lengths(reply, job.rows, workload.prompt_tokens)
                kind = "warm-up, not counted" if number == 0 else f"round {number}/{rounds}"
                say(f"steps {workload.name} {side}: {reply['seconds']:.1f} s ({kind})")
                if number:
                    told[side].append(reply)
    finally:
        for worker in workers.values():
            worker.close()
    alone = _products_s(settings.model, job, workload.prompt_tokens)
    say(f"steps {workload.name}: its products alone {sum(alone.values()):.1f} s")
    return {
        "rows": job.rows,
        "prompt_tokens": workload.prompt_tokens,
        "new_tokens": NEW_TOKENS,
        "kl_coef": job.kl_coef,
        "lora_rank": job.lora_rank,
        "seconds": {side: [reply["seconds"] for reply in replies] for side, replies in told.items()},
        "peak_bytes": {side: replies[-1]["peak_bytes"] for side, replies in told.items()},
        "muster_phases": [reply["phases"] for reply in told["muster"]],
        "products_s": alone,
    }


def _products_s(path: str, job: Job, prompt_tokens: int) -> dict[str, float]:
    """By phase, seconds of a step's matrix products alone, each prompt computed once per group.

    With an adapter the frozen weights have no gradient; its own products are left out.
    """
    model = load_model(path, dtype=torch.float32)
    rows = prompt_tokens + job.group_size * (NEW_TOKENS - 1)
    head_rows = job.group_size * NEW_TOKENS
    forward = job.num_prompts * forward_products_s(model, rows, head_rows)
    whole = job.num_prompts * update_products_s(model, rows, head_rows, frozen=bool(job.lora_rank))
    return {
        "sample": sampling_products_s(model, job.num_prompts, prompt_tokens, job.rows),
        "reference": forward if job.kl_coef else 0.0,
        "update": whole,
    }


def start(job: Job, work: Path) -> dict[str, Worker]:
    """Both sides of the job, each in a process of its own; Muster first."""
    path = job.write(work)
    # A run of its own name each time: Muster continues none by accident.
    runs = work / f"{job.name}-{sum(1 for _ in work.glob(f'{job.name}-*'))}"
    runs.mkdir()
    return {
        side: Worker(script, [str(path), str(runs)], work / f"{job.name}.{side}.log")
        for side, script in SCRIPTS.items()
    }


def check_lengths(reply: Mapping[str, object], rows: int, prompt_tokens: int) -> None:
    """Raises AssertionError unless the step was about exactly these tokens."""
    expected = {"prompt_tokens": [prompt_tokens] * rows, "completion_tokens": [NEW_TOKENS] * rows}
    for what, lengths in expected.items():
        assert reply[what] == lengths, f"{what} are {reply[what]} instead of {lengths}"
