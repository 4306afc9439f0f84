"""Trains a few steps of the embedded model through a real vLLM server: an adapter, then all weights.

`real_vllm.py PYTHON`, with the Python of vLLM's environment (`make test-vllm`). For each step it prints by
how much the server's logprobs differ from the trainer's; fails where that is more than float32 explains, or
where the server turns out to sample with the weights of the start.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import torch

from muster.assemble import assemble, load_policy, prepare
from muster.clock import unwatched
from muster.config import Config, from_mapping, to_toml
from muster.engines.wire import FaultError, Wire
from muster.loop import train, whole_batch
from muster.records import Group
from muster.run import self_checked
from muster.runstate import Run
from toy_run import number, write_rows

MODEL = "smollm2-135m-instruct"
PORT = 8131
START_S = 600.0
NUM_STEPS = 3
CLOSE, APART = 1e-3, 1e-2
"""Nats: what float32 explains, and what training moved by at least."""
FORMS: dict[str, dict[str, dict[str, object]]] = {
    "adapter": {"model": {"lora": {"rank": 8, "alpha": 16.0}}, "optim": {"lr": 3e-3}},
    "full weights": {"model": {}, "optim": {"lr": 1e-4}},
}


def config_of(form: str, folder: Path) -> Config:
    """Three steps of two prompts with four completions of 12 tokens."""
    write_rows(folder / "train.jsonl", ["Name a colour.", "Name an animal.", "Count to three."])
    chosen = FORMS[form]
    return from_mapping(
        {
            "model": {"path": MODEL, "max_tokens": 256, **chosen["model"]},
            "data": {"path": str(folder / "train.jsonl")},
            "reward": {"use": ["toy_rewards:low_bytes_of_text"], "in_process": ["low_bytes_of_text"]},
            "sampling": {"prompts_per_step": 2, "group_size": 4, "max_tokens": 12, "temperature": 0.9},
            "engine": {"kind": "vllm", "options": {"urls": f"http://127.0.0.1:{PORT}"}},
            "optim": chosen["optim"],
            "run": {"dir": str(folder / "runs"), "steps": NUM_STEPS, "seed": 5, "budget_tokens": 512},
        }
    )


@contextlib.contextmanager
def server(python: str, config: Config, folder: Path) -> Generator[None]:
    """`muster engine serve` for the configuration, until the block ends."""
    file = folder / "run.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    log = folder / "server.log"
    command = [sys.executable, "-m", "muster", "engine", "serve", str(file), "--vllm-python", python]
    command += ["--port", str(PORT), "--also=--max-num-seqs 16"]
    began = time.monotonic()
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        while not is_answering():
            if child.poll() is not None or time.monotonic() - began > START_S:
                raise SystemExit(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(1.0)
        print(f"  server ready after {time.monotonic() - began:.0f} s", flush=True)
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        print(f"  server ended with exit code {child.wait(60)}", flush=True)


def is_answering() -> bool:
    wire = Wire(f"http://127.0.0.1:{PORT}")
    try:
        wire.call("GET", "/health", timeout_s=2.0)
    except FaultError:
        return False
    finally:
        wire.close()
    return True


def gap_at_start(run: Run, groups: tuple[Group, ...], start: dict[str, torch.Tensor]) -> float:
    """Mean |logprob difference| of what was sampled last to the weights that the run started from."""
    batch = whole_batch(groups)
    with torch.no_grad(), run.policy.using(start):
        scores = run.policy.score(batch, temperature=run.objective.temperature)
    return float((scores.logprobs - batch.sampler_logprobs).abs()[batch.mask].mean())


def check(config: Config) -> None:
    """Trains, and fails where the server isn't on the trainer's weights of each step."""
    materials = prepare(config, lambda _: None)
    with closing(materials.grader):
        policy = load_policy(config.model, materials.tokenizer, seed=5, say=lambda _: None)
        run = assemble(materials, policy, unwatched)
        with closing(run.collector.engine):
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


def main(python: str) -> None:
    """Both forms, each with a server of its own."""
    if not Path(python).is_file():
        raise SystemExit(f"{python} is not there; make it with: make vllm")
    for form in FORMS:
        print(form, flush=True)
        with tempfile.TemporaryDirectory(prefix="muster-real-") as place:
            config = config_of(form, Path(place))
            with server(os.path.abspath(python), config, Path(place)):
                check(config)
    print("the server sampled with the trainer's weights at every step")


if __name__ == "__main__":
    main(*sys.argv[1:])
