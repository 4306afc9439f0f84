"""Part `update`: one group's update, packed with its prompt once, against plain padded rows; both warm."""

import time
from dataclasses import replace
from functools import partial

import torch

from keeping import Data, Settings, save, say
from machine import update_products_s
from muster import pretrained
from muster.batch import Batch
from muster.policy import Policy
from muster.update import Objective
from muster_side import batch_of, prompts_of, sample, session, update_once
from workloads import NEW_TOKENS, WORKLOADS, exact_prompts, write_prompts

GROUP_SIZE = 16
PROMPTS = (66, 256)
ROUNDS = 3
LR = 1e-6


def measure(settings: Settings) -> None:
    """Both ways at each prompt length, in turn."""
    tokenizer = pretrained.load_tokenizer(settings.model)
    rounds = settings.rounds_or(ROUNDS)
    result: Data = {"group_size": GROUP_SIZE, "new_tokens": NEW_TOKENS}
    cases: dict[str, Data] = {}
    for tokens in PROMPTS:
        data = write_prompts(settings.work / "update.jsonl", exact_prompts(tokenizer, 1, tokens))
        job = WORKLOADS[1].job(settings.model, data, settings.threads)
        with session(replace(job, name="update", num_prompts=1), settings.work) as run:
            prompts = prompts_of(run, 1)
            batch = batch_of(prompts, sample(run, prompts, GROUP_SIZE))
            cases[str(tokens)] = _case(run.policy, run.objective, batch, rounds, settings)
    save(settings, "update", {**result, "prompts": cases})


def _case(packed: Policy, objective: Objective, batch: Batch, rounds: int, settings: Settings) -> Data:
    assert packed.packs, f"prompts are not shared on this model: {packed.plain_because}"
    model = pretrained.load_model(settings.model, dtype=torch.float32)
    plain = Policy(model, packed.tokenizer, max_tokens=4096, pack_prefixes=False)
    ways = {
        name: partial(_seconds, policy, _adam(policy), batch, objective)
        for name, policy in (("packed", packed), ("plain", plain))
    }
    prompt, rows = len(batch.prompts[0]), len(batch)
    body_rows, head_rows = prompt + rows * (NEW_TOKENS - 1), rows * NEW_TOKENS
    seconds: dict[str, list[float]] = {name: [] for name in [*ways, "products"]}
    for number in range(rounds + 1):
        for name, way in ways.items():
            took = way()
            if number:
                seconds[name].append(took)
        if number:
            products = update_products_s(packed.base, body_rows, head_rows)
            seconds["products"].append(products)
            last = ", ".join(f"{name} {values[-1]:.2f} s" for name, values in seconds.items())
            say(f"update prompt {prompt}, round {number}/{rounds}: {last}")
    return {"seconds": seconds, "packed_rows": body_rows, "head_rows": head_rows}


def _adam(policy: Policy) -> torch.optim.Optimizer:
    return torch.optim.AdamW([param for _, param in policy.trainable()], lr=LR, weight_decay=0.0)


def _seconds(policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, objective: Objective) -> float:
    start = time.perf_counter()
    done = update_once(policy, optimizer, batch, objective)
    assert done.stepped, "the update was skipped: its gradient was not finite"
    return time.perf_counter() - start
