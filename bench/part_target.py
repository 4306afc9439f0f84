"""Part `target`: seconds of training until the demo's held-out reward is 0.85, step by step in turn."""

from typing import NamedTuple

from keeping import Settings, save, say
from muster.data import prompt_order
from part_steps import start
from talking import Reply
from workloads import HELD_OUT_DATA, TRAIN_DATA, Job, read_prompts, write_prompts

TARGET = 0.85
EVAL_EVERY = 2


class Seen(NamedTuple):
    """An evaluation: after how many steps and seconds of training, and the reward."""

    step: int
    seconds: float
    reward: float


def measure(settings: Settings) -> None:
    """Steps both sides until each has reached the reward, or there were too many steps."""
    job = demo(settings)
    workers = start(job, settings.work)
    seconds: dict[str, list[float]] = {side: [] for side in workers}
    seen: dict[str, list[Seen]] = {side: [] for side in workers}
    try:
        for step in range(1, settings.max_steps + 1):
            for side, worker in workers.items():
                if not _has_reached(seen[side]):
                    _step(side, worker.ask("step"), step, seconds[side], seen[side])
            if all(map(_has_reached, seen.values())):
                break
    finally:
        for worker in workers.values():
            worker.close()
    sides = {
        side: {
            "reached": _has_reached(seen[side]),
            "training_s": sum(seconds[side]),
            "steps": len(seconds[side]),
            "step_seconds": seconds[side],
            "evaluations": [one._asdict() for one in seen[side]],
        }
        for side in workers
    }
    shape = {"prompts_per_step": job.num_prompts, "group_size": job.group_size, "max_tokens": job.new_tokens}
    save(settings, "target", {"target": TARGET, "eval_every": EVAL_EVERY, **shape, "sides": sides})


def demo(settings: Settings) -> Job:
    """The run of examples/json_extraction.toml, its prompts in the order in which Muster draws them."""
    prompts = read_prompts(TRAIN_DATA)
    job = Job(
        name="target",
        model=settings.model,
        data=str(settings.work / "target.jsonl"),
        reward="extraction",
        num_prompts=2,
        group_size=16,
        new_tokens=64,
        fixed_length=False,
        threads=settings.threads,
        lr=3e-5,
        beta1=0.9,
        beta2=0.99,
        warmup_steps=3,
        held_out=str(HELD_OUT_DATA),
        eval_every=EVAL_EVERY,
    )
    drawn = prompt_order(len(prompts), job.seed, 0, job.num_prompts * (settings.max_steps + 1))
    write_prompts(settings.work / "target.jsonl", [prompts[index] for index in drawn])
    return job


def _step(side: str, reply: Reply, step: int, seconds: list[float], seen: list[Seen]) -> None:
    took = reply["seconds"]
    assert isinstance(took, float)
    seconds.append(took)
    text = f"target {side}: step {step} took {took:.1f} s"
    if isinstance(reward := reply.get("eval_reward"), float):
        seen.append(Seen(step, sum(seconds), reward))
        text += f"; held-out reward {reward:.3f} after {sum(seconds):.0f} s of training"
    say(text)


def _has_reached(seen: list[Seen]) -> bool:
    return bool(seen) and seen[-1].reward >= TARGET
