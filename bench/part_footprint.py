"""Part `footprint`: the peak of memory of full, LoRA and QLoRA training, with a reference and without.

Each case is a process of its own that takes two steps: in the second the optimizer's state is there.
"""

from dataclasses import replace

from keeping import Settings, load, save, say
from muster.pretrained import load_tokenizer
from part_steps import SCRIPTS, check_lengths
from talking import Worker
from workloads import KL_COEF, LORA_RANK, NEW_TOKENS, WORKLOADS, Job, exact_prompts, write_prompts

CASES = {
    "full": {},
    "qlora": {
        "lora_rank": LORA_RANK,
        "quantize": "nf4",
        "optimizer": "paged_adamw_8bit",
        "gradient_checkpointing": True,
    },
    "lora": {"lora_rank": LORA_RANK},
    "lora_checkpointed": {"lora_rank": LORA_RANK, "gradient_checkpointing": True},
}
"""What differs from workload S."""
ROUNDS = {("qlora", "muster"): 3}
"""Processes of a case, where one is not enough: with a reference and without differ by less than these do."""
NUM_STEPS = 2


def measure(settings: Settings) -> None:
    """Every case without a reference and with one, Muster's first; what is measured already stays."""
    done: dict[str, dict[str, list[int]]] = {}
    if not settings.again and (before := load(settings.results, "footprint")) is not None:
        done.update(before["peak_bytes"])  # pyright: ignore[reportArgumentType, reportCallIssue]  # as below
    workload = WORKLOADS[0]
    tokenizer = load_tokenizer(settings.model)
    texts = exact_prompts(tokenizer, workload.num_prompts, workload.prompt_tokens)
    data = write_prompts(settings.work / "footprint.jsonl", texts)
    base = workload.job(settings.model, data, settings.threads)
    for side in SCRIPTS:
        for kl_coef in (0.0, KL_COEF):
            for name, changes in CASES.items():
                case = f"{name}_reference" if kl_coef else name
                job = replace(base, name=case, kl_coef=kl_coef, **changes)
                peaks = done.setdefault(case, {}).setdefault(side, [])
                while len(peaks) < settings.rounds_or(ROUNDS.get((name, side), 1)):
                    peaks.append(_peak(job, side, len(peaks), settings, workload.prompt_tokens))
                    save(settings, "footprint", {"rows": job.rows, "peak_bytes": done})


def _peak(job: Job, side: str, number: int, settings: Settings, prompt_tokens: int) -> int:
    """Bytes that the process held at most, after its steps."""
    path = job.write(settings.work)
    folder = settings.work / f"{job.name}-{side}-{number}"
    folder.mkdir()
    worker = Worker(SCRIPTS[side], [str(path), str(folder)], settings.work / f"{job.name}.{side}.log")
    try:
        replies = [worker.ask("step") for _ in range(NUM_STEPS)]
    finally:
        worker.close()
    for reply in replies:
        check_lengths(reply, job.rows, prompt_tokens)
    peak = replies[-1]["peak_bytes"]
    assert isinstance(peak, int)
    say(f"footprint {job.name} {side}: {peak / 1e9:.2f} GB after {NUM_STEPS} steps of {NEW_TOKENS} tokens")
    return peak
