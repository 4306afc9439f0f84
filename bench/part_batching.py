"""Part `batching`, asked for by name only: transformers' continuous batching against Muster's engine.

And `generate` beside them, in turn. What continuous batching is run with is what a short trial of each case
finds fastest.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from keeping import Data, Settings, save, say
from muster import pretrained
from muster.runstate import Run
from muster_side import prompts_of, sample_to, session
from paged import (
    BATCH_TOKENS,
    PAGE_TOKENS,
    Row,
    Setting,
    Work,
    difference,
    num_pages,
    opened,
    sample_paged,
    settings_for,
)
from part_sampling import generate, seconds_of
from workloads import NEW_TOKENS, WORKLOADS, exact_prompts, write_prompts


class Case(NamedTuple):
    """Prompts, each continued by the same number of rows."""

    num_prompts: int
    each: int
    is_uneven: bool = False

    @property
    def name(self) -> str:
        """Under which it stands in the results."""
        return f"{self.num_prompts}x{self.each}"


CASES = (Case(2, 8), Case(2, 16), Case(2, 32), Case(64, 1, is_uneven=True))
PROMPT_TOKENS = 69
SHORTEST = 8
"""Tokens of an uneven row, at least; `NEW_TOKENS` at most."""
UNEVEN_AT_ONCE = 32
SEED = 2026
"""Of the uneven lengths."""
WARM_TOKENS = 4
TRIAL_TOKENS = 8
ROUNDS = 2


def measure(settings: Settings) -> None:
    """Every case; what is measured is kept after each."""
    rounds = settings.rounds_or(ROUNDS)
    model = pretrained.load_model(settings.model, dtype=torch.float32)
    tokenizer = pretrained.load_tokenizer(settings.model)
    cases: Data = {}
    for case in CASES:
        texts = exact_prompts(tokenizer, case.num_prompts, PROMPT_TOKENS)
        data = write_prompts(settings.work / "batching.jsonl", texts)
        job = WORKLOADS[1].job(settings.model, data, settings.threads)
        with session(replace(job, name="batching"), settings.work) as run:
            cases[case.name] = measured(case, run, model, rounds)
        found = {
            "page_tokens": PAGE_TOKENS,
            "batch_tokens": BATCH_TOKENS,
            "prompt_tokens": PROMPT_TOKENS,
            "cases": cases,
        }
        save(settings, "batching", found)


def lengths_of(case: Case) -> list[int]:
    """Tokens of each prompt's rows; the uneven ones are the same in every run."""
    if not case.is_uneven:
        return [NEW_TOKENS] * case.num_prompts
    draws = random.Random(SEED)
    return [draws.randint(SHORTEST, NEW_TOKENS) for _ in range(case.num_prompts)]


def measured(case: Case, run: Run, model: PreTrainedModel, rounds: int) -> Data:
    """Tokens a second of all three, and what continuous batching was run with."""
    prompts = prompts_of(run, case.num_prompts)
    rows = case.num_prompts * case.each
    work = Work(
        prompts=[prompt.ids for prompt in prompts],
        lengths=lengths_of(case),
        each=case.each,
        at_once=UNEVEN_AT_ONCE if case.is_uneven else rows,
    )
    trial = work.cut(TRIAL_TOKENS)
    tried = {setting: _paged(model, trial, setting) for setting in settings_for(work)}
    for setting, done in tried.items():
        say(
            f"batching {case.name}, tried {setting.attention} with {setting.at_once} at once: "
            f"{trial.tokens / done.seconds:.0f} tokens/s"
        )
    chosen = min(tried, key=lambda setting: tried[setting].seconds)
    ways: dict[str, Callable[[Work], float]] = {
        "muster": lambda part: seconds_of(
            partial(sample_to, run, prompts, part.each, part.lengths, max_rows=part.at_once)
        ),
        "paged": lambda part: _paged(model, part, chosen).seconds,
        "generate": lambda part: seconds_of(partial(generate_in_batches, model, part)),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(work.cut(WARM_TOKENS))
    for number in range(1, rounds + 1):
        for name, way in ways.items():
            rates[name].append(work.tokens / way(work))
        last = ", ".join(f"{name} {values[-1]:.0f}" for name, values in rates.items())
        say(f"batching {case.name}, round {number}/{rounds}: {last} tokens/s")
    return {
        "num_prompts": case.num_prompts,
        "rows": rows,
        "lengths": [min(work.lengths), max(work.lengths)],
        "at_once": work.at_once,
        "tokens_per_s": rates,
        "attention": chosen.attention,
        "paged_at_once": chosen.at_once,
        "pages": num_pages(work),
        "difference": difference(model, tried[chosen].rows[0]),
    }


class _Done(NamedTuple):
    seconds: float
    rows: Sequence[Row]


def _paged(model: PreTrainedModel, work: Work, setting: Setting) -> _Done:
    """Seconds of the completions alone: pages are laid out, and a first row is sampled, before."""
    with opened(model, work, setting) as manager:
        # Of a prompt that is none of the work's, or its pages would be found again.
        first = Work([list(reversed(work.prompts[0]))], [WARM_TOKENS], work.each, work.at_once)
        sample_paged(manager, first)
        start = time.perf_counter()
        rows = sample_paged(manager, work)
        return _Done(time.perf_counter() - start, rows)


def batches(work: Work) -> list[Work]:
    """The work in parts of no more rows than may be side by side, one after the other."""
    num_prompts = max(1, work.at_once // work.each)
    starts = range(0, len(work.prompts), num_prompts)
    parts = [slice(start, start + num_prompts) for start in starts]
    return [work._replace(prompts=work.prompts[part], lengths=work.lengths[part]) for part in parts]


def generate_in_batches(model: PreTrainedModel, work: Work) -> None:
    """Runs transformers' `generate`, which samples a batch until its longest row ends."""
    for part in batches(work):
        generate(model, part.prompts, part.each, max(part.lengths))
