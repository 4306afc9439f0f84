"""Part `curves`: how the seconds of sampling and update grow with the group and with the prompt."""

import time
from collections.abc import Sequence
from dataclasses import replace

from keeping import Data, Settings, save, say
from muster import pretrained
from muster.runstate import Run
from muster_side import batch_of, prompts_of, sample, session, update_once
from workloads import NEW_TOKENS, WORKLOADS, exact_prompts, write_prompts

GROUPS = (4, 8, 16, 32, 64)
GROUP_PROMPT = 128
LENGTHS = (64, 128, 256, 512, 1024)
LENGTH_GROUP = 16
ROUNDS = 1


def measure(settings: Settings) -> None:
    """Group size at a fixed prompt, then prompt length at a fixed group; warm."""
    rounds = settings.rounds_or(ROUNDS)
    result: Data = {"new_tokens": NEW_TOKENS, "group_prompt": GROUP_PROMPT, "length_group": LENGTH_GROUP}
    result["groups"] = _curve("group size", [(GROUP_PROMPT, size) for size in GROUPS], settings, rounds)
    result["lengths"] = _curve(
        "prompt length", [(length, LENGTH_GROUP) for length in LENGTHS], settings, rounds
    )
    save(settings, "curves", result)


def _curve(what: str, points: Sequence[tuple[int, int]], settings: Settings, rounds: int) -> list[Data]:
    """Seconds of sampling and update at (prompt tokens, group size), from one model that stays loaded."""
    tokenizer = pretrained.load_tokenizer(settings.model)
    texts = [exact_prompts(tokenizer, 1, tokens)[0] for tokens, _ in points]
    data = write_prompts(settings.work / "curves.jsonl", texts)
    job = WORKLOADS[1].job(settings.model, data, settings.threads)
    sampling: list[list[float]] = [[] for _ in points]
    updates: list[list[float]] = [[] for _ in points]
    with session(replace(job, name="curves"), settings.work) as run:
        _point(run, 0, points[0][1])
        for number in range(1, rounds + 1):
            for place, (tokens, size) in enumerate(points):
                sample_s, update_s = _point(run, place, size)
                sampling[place].append(sample_s)
                updates[place].append(update_s)
                say(
                    f"curves {what}, round {number}/{rounds}: prompt {tokens}, group {size}: "
                    f"sampling {sample_s:.1f} s, update {update_s:.1f} s"
                )
    return [
        {"prompt_tokens": tokens, "group_size": size, "sample_s": sampled, "update_s": updated}
        for (tokens, size), sampled, updated in zip(points, sampling, updates, strict=True)
    ]


def _point(run: Run, place: int, group_size: int) -> tuple[float, float]:
    prompts = [prompts_of(run, place + 1)[place]]
    start = time.perf_counter()
    groups = sample(run, prompts, group_size)
    sampled = time.perf_counter()
    update_once(run.policy, run.optimizer, batch_of(prompts, groups), run.objective)
    return sampled - start, time.perf_counter() - sampled
