"""Part `sampling`: tokens a second of Muster's engine and of transformers' `generate`, in turn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from keeping import Data, Settings, save, say
from machine import sampling_products_s
from muster import pretrained
from muster.runstate import Run
from muster_side import prompts_of, sample, session
from workloads import NEW_TOKENS, WORKLOADS, exact_prompts, write_prompts


class Case(NamedTuple):
    """So many rows, half of them of each of two prompts."""

    prompt_tokens: int
    rows: int
    against_generate: bool = True

    @property
    def name(self) -> str:
        """Under which it stands in the results."""
        return f"{self.prompt_tokens}x{self.rows}"


CASES = (Case(69, 16), Case(69, 32), Case(69, 64), Case(254, 32), Case(69, 128, against_generate=False))
NUM_PROMPTS = 2
WARM_TOKENS = 4
ROUNDS = 2


def measure(settings: Settings) -> None:
    """Every case, and beside it the products alone."""
    rounds = settings.rounds_or(ROUNDS)
    model = pretrained.load_model(settings.model, dtype=torch.float32)
    cases: Data = {}
    for case in CASES:
        texts = exact_prompts(pretrained.load_tokenizer(settings.model), NUM_PROMPTS, case.prompt_tokens)
        data = write_prompts(settings.work / "sampling.jsonl", texts)
        job = WORKLOADS[1].job(settings.model, data, settings.threads)
        with session(replace(job, name="sampling"), settings.work) as run:
            cases[case.name] = _case(case, run, model, rounds)
        save(settings, "sampling", {"new_tokens": NEW_TOKENS, "cases": cases})


def _case(case: Case, run: Run, model: PreTrainedModel, rounds: int) -> Data:
    prompts = prompts_of(run, NUM_PROMPTS)
    each = case.rows // NUM_PROMPTS
    ways: dict[str, Callable[[int], object]] = {"muster": partial(sample, run, prompts, each)}
    if case.against_generate:
        ways["generate"] = partial(generate, model, [prompt.ids for prompt in prompts], each)
    rates: dict[str, list[float]] = {name: [] for name in [*ways, "products"]}
    for way in ways.values():
        way(WARM_TOKENS)
    for number in range(1, rounds + 1):
        for name, way in ways.items():
            rates[name].append(case.rows * NEW_TOKENS / seconds_of(partial(way, NEW_TOKENS)))
        alone = sampling_products_s(model, NUM_PROMPTS, case.prompt_tokens, case.rows)
        rates["products"].append(case.rows * NEW_TOKENS / alone)
        last = ", ".join(f"{name} {values[-1]:.0f}" for name, values in rates.items())
        say(f"sampling {case.name}, round {number}/{rounds}: {last} tokens/s")
    return {"prompt_tokens": case.prompt_tokens, "rows": case.rows, "tokens_per_s": rates}


def seconds_of(way: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def generate(model: PreTrainedModel, prompts: Sequence[Sequence[int]], each: int, tokens: int) -> None:
    """What TRL samples with: transformers' `generate` on every prompt repeated, the end token barred.

    Raises AssertionError where it gives another number of tokens.
    """
    ids = torch.tensor([list(prompt) for prompt in prompts]).repeat_interleave(each, dim=0)
    # The type of a loaded model doesn't say that it can generate.
    generator: Any = model
    with torch.no_grad():
        done = generator.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
    assert done.shape[1] == ids.shape[1] + tokens, done.shape
