"""Trains the embedded model through a real vLLM server, in each of the ways that a run can ask one.

`real_vllm.py PYTHON`, with the Python of vLLM's environment (`make test-vllm`). On one server an adapter, in
turn and one step ahead; on another one all weights: in turn, one step ahead while the server is killed and
started again, and by two ranks. For each step it prints by how much the server's logprobs differ from the
trainer's, and whose weights sampled; fails where that is more than float32 explains, where a completion is by
other weights than promised, or where the server turns out to sample with the weights of the start.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from muster.assemble import assemble, load_policy, prepare
from muster.clock import unwatched
from muster.config import Config, from_mapping, to_toml
from muster.loop import train, whole_batch
from muster.policy import Policy, Weights
from muster.pretrained import load_tokenizer
from muster.records import Group
from muster.run import folder_of, self_checked
from muster.store import read_metrics, read_rollouts
from real_server import LOADED, NAMED, URL, RealServer
from toy_run import write_rows

MODEL = "smollm2-135m-instruct"
NUM_STEPS, NUM_AHEAD_STEPS = 3, 4
TEMPERATURE = 0.9
CLOSE, APART = 1e-3, 1e-2
"""Nats: what float32 explains, and what training moved by at least."""
CAP = 2.0
"""Of the recipe's correction: a token's weight."""
FORMS: dict[str, dict[str, dict[str, object]]] = {
    "adapter": {"model": {"lora": {"rank": 8, "alpha": 16.0}}, "optim": {"lr": 3e-3}},
    # Without moments, which two ranks on one machine would hold twice each.
    "all": {"model": {}, "optim": {"name": "sgd", "lr": 0.1}},
}


def config_of(
    form: str, folder: Path, name: str, *, steps: int = NUM_STEPS, ahead: int = 0, tokens: int = 12
) -> Config:
    """A few steps of two prompts with four short completions."""
    write_rows(folder / "train.jsonl", ["Name a colour.", "Name an animal.", "Count to three."])
    chosen = FORMS[form]
    sampling = {"prompts_per_step": 2, "group_size": 4, "max_tokens": tokens, "temperature": TEMPERATURE}
    return from_mapping(
        {
            "model": {"path": MODEL, "max_tokens": 256, **chosen["model"]},
            "data": {"path": str(folder / "train.jsonl")},
            "reward": {"use": ["toy_rewards:low_bytes_of_text"], "in_process": ["low_bytes_of_text"]},
            "sampling": sampling,
            # A server that is killed takes a minute or more to come back.
            "engine": {"kind": "vllm", "ahead": ahead, "options": {"urls": URL, "patience_s": 600.0}},
            "optim": chosen["optim"],
            "run": {
                "name": name,
                "dir": str(folder / "runs"),
                "steps": steps,
                "seed": 5,
                "budget_tokens": 512,
            },
        }
    )


def tell(step: int, metrics: Mapping[str, float | None], groups: Sequence[Group], ahead: int) -> None:
    """Prints how near server and trainer are; fails where the completions aren't by the weights promised."""
    [version] = {rollout.completion.version for group in groups for rollout in group.rollouts}
    gap, line = _number(metrics, "sampling/mismatch"), ""
    if ahead:
        staleness = _number(metrics, "sampling/staleness/max")
        weight = _number(metrics, "sampling/importance_sampling_ratio/max")
        line = f", {staleness:.0f} behind, corrected by {weight:.2f} at most"
        assert staleness == min(step - 1, ahead), staleness
        assert weight <= CAP + 1e-6, weight
    print(
        f"  step {step}: mean |logprob difference| {gap:.1e} nats, weights of step {version}{line}",
        flush=True,
    )
    assert version == max(0, step - 1 - ahead), version
    assert gap < CLOSE, gap


def _number(metrics: Mapping[str, float | None], name: str) -> float:
    value = metrics[name]
    assert value is not None, name
    return value


def refuse_unmoved(policy: Policy, start: Weights | None, groups: Sequence[Group]) -> None:
    """Fails where what was sampled last is by the weights that the run started from."""
    batch = whole_batch(groups)
    with torch.no_grad(), policy.using(start):
        logprobs = policy.score(batch, temperature=TEMPERATURE).logprobs
    moved = float((logprobs - batch.sampler_logprobs).abs()[batch.mask].mean())
    print(f"  the last step against the weights of the start: {moved:.1e} nats", flush=True)
    assert moved > APART, moved


def alone(config: Config, breaks: RealServer | None = None) -> None:
    """A run in this process, whose server `breaks` is killed in its middle."""
    materials = prepare(config, lambda _: None)
    with closing(materials.grader), ThreadPoolExecutor(1) as beside:
        policy = load_policy(config.model, materials.tokenizer, seed=5, say=lambda _: None)
        run = assemble(materials, policy, unwatched)
        with closing(run.collector.engine):
            broken = beside.submit(interrupt, breaks, breaks.num_calls(NAMED)) if breaks else None
            checked = self_checked(run)["sampler_against_trainer"]
            print(f"  before the run: largest difference {checked:.1e} nats", flush=True)
            start = policy.snapshot()
            groups: tuple[Group, ...] = ()
            for report in train(run):
                groups = report.groups
                tell(report.step, report.metrics, groups, config.engine.ahead)
                if broken is not None:
                    print(f"    waited {report.timings['sample']:.0f} s for its completions", flush=True)
            if broken is not None:
                broken.result()
            refuse_unmoved(policy, start, groups)


def interrupt(server: RealServer, num_named: int) -> None:
    """Kills the server while it samples by the weights of the first step, and starts it again."""
    # A load names the weights twice: those of the start, then those of the first step.
    server.wait_for(NAMED, num_named + 4)
    time.sleep(0.3)
    server.kill()
    print("  server killed", flush=True)
    server.start()


def by_two_ranks(config: Config, server: RealServer) -> None:
    """A run of two processes under torchrun, read from its folder; each load reaches the server once."""
    before = server.num_calls(LOADED)
    file = server.folder / "ranks.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, "-m", "muster", "train", str(file)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the ranks failed:\n{done.stderr[-3000:]}")
    folder = folder_of(config)
    for line in read_metrics(folder):
        tell(line["step"], line, read_rollouts(folder, line["step"]).groups, 0)
    num_loads = server.num_calls(LOADED) - before
    print(f"  {num_loads} loads of the weights for {NUM_STEPS} updates by two ranks", flush=True)
    assert num_loads == NUM_STEPS + 1, num_loads
    policy = load_policy(config.model, load_tokenizer(MODEL), seed=5, say=lambda _: None)
    refuse_unmoved(policy, None, read_rollouts(folder, NUM_STEPS).groups)


def main(python: str) -> None:
    """All of them; each server serves several runs, one after the other."""
    if not Path(python).is_file():
        raise SystemExit(f"{python} is not there; make it with: make vllm")
    began = time.monotonic()
    with _served(python, "adapter") as server:
        print("an adapter", flush=True)
        alone(config_of("adapter", server.folder, "turns"))
        print("an adapter, one step ahead", flush=True)
        alone(config_of("adapter", server.folder, "ahead", steps=NUM_AHEAD_STEPS, ahead=1))
    with _served(python, "all") as server:
        print("all weights", flush=True)
        alone(config_of("all", server.folder, "turns"))
        print("all weights, one step ahead, the server killed and started again", flush=True)
        config = config_of("all", server.folder, "killed", steps=NUM_AHEAD_STEPS, ahead=1, tokens=48)
        alone(config, breaks=server)
        print("all weights, two ranks", flush=True)
        by_two_ranks(config_of("all", server.folder, "ranks"), server)
    print(f"every completion was by the weights promised, in {time.monotonic() - began:.0f} s")


@contextmanager
def _served(python: str, form: str) -> Generator[RealServer]:
    with tempfile.TemporaryDirectory(prefix="muster-real-") as place:
        folder = Path(place)
        with RealServer(os.path.abspath(python), config_of(form, folder, "server"), folder) as server:
            yield server


if __name__ == "__main__":
    main(*sys.argv[1:])
