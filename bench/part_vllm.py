"""Part `vllm`, asked for by name only: tokens a second of Muster's engine and of vLLM's CPU build, in turn.

vLLM has an environment of its own beside bench/.venv; docs/benchmarks.md says how it is made.
"""

import json
from dataclasses import replace
from functools import partial

from keeping import Data, Settings, save, say
from muster import pretrained
from muster_side import prompts_of, sample, session
from part_sampling import seconds_of
from talking import Worker
from workloads import NEW_TOKENS, ROOT, WORKLOADS, exact_prompts, write_prompts

PYTHON = ROOT / "bench" / ".venv-vllm" / "bin" / "python"
PROMPT_TOKENS = 69
ROWS = (16, 64)
WARM_TOKENS = 4
ROUNDS = 3


def measure(settings: Settings) -> None:
    """Both at each number of rows; raises FileNotFoundError where vLLM's environment is missing."""
    if not PYTHON.is_file():
        raise FileNotFoundError(f"{PYTHON} is not there; make it with: make vllm")
    rounds = settings.rounds_or(ROUNDS)
    texts = exact_prompts(pretrained.load_tokenizer(settings.model), 2, PROMPT_TOKENS)
    data = write_prompts(settings.work / "vllm.jsonl", texts)
    job = WORKLOADS[1].job(settings.model, data, settings.threads)
    cases: Data = {}
    with session(replace(job, name="vllm"), settings.work) as run:
        prompts = prompts_of(run, 2)
        ids = settings.work / "vllm.prompts.json"
        ids.write_text(json.dumps([prompt.ids for prompt in prompts]), encoding="utf-8")
        worker = Worker(
            "worker_vllm.py",
            [settings.model, str(ids)],
            settings.work / "vllm.log",
            python=PYTHON,
            environment={"OMP_NUM_THREADS": str(settings.threads)},
        )
        try:
            for rows in ROWS:
                rates: dict[str, list[float]] = {"muster": [], "vllm": []}
                sample(run, prompts, rows // 2, WARM_TOKENS)
                worker.ask(f"{rows} {WARM_TOKENS}")
                for number in range(1, rounds + 1):
                    seconds = seconds_of(partial(sample, run, prompts, rows // 2))
                    rates["muster"].append(rows * NEW_TOKENS / seconds)
                    reply = worker.ask(f"{rows} {NEW_TOKENS}")
                    seconds = reply["seconds"]
                    assert isinstance(seconds, float)
                    rates["vllm"].append(rows * NEW_TOKENS / seconds)
                    last = ", ".join(f"{name} {values[-1]:.0f}" for name, values in rates.items())
                    say(f"vllm {rows} rows, round {number}/{rounds}: {last} tokens/s")
                cases[str(rows)] = {"rows": rows, "prompt_tokens": PROMPT_TOKENS, "tokens_per_s": rates}
        finally:
            worker.close()
    save(settings, "vllm", {"new_tokens": NEW_TOKENS, "cases": cases})
