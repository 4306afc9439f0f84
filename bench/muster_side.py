"""Muster set up from a job: as a whole run, or as its parts.

The one file that knows Muster's insides: `muster.run.run`, `muster.assemble`, `muster.update`.
"""

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from muster.assemble import assemble, load_policy, prepare
from muster.batch import Batch, Row, collate, count_totals
from muster.clock import Clock, unwatched
from muster.config import Config, from_mapping
from muster.engines.base import Sampling
from muster.engines.local import LocalEngine
from muster.engines.sampler import Decodes, Rollouts
from muster.policy import Policy
from muster.records import Completion, Prompt, StreamKey
from muster.runstate import Run
from muster.update import Budget, Objective, Updated, update
from workloads import LORA_TARGETS, NEW_TOKENS, Job

HERE = Path(__file__).resolve().parent
BUDGET_TOKENS = 16_384
"""Of one forward in what is measured here: every measured group fits, packed or plain."""


def configuration(job: Job, folder: Path) -> Config:
    """The job as Muster is told it; runs go into the folder."""
    settings: dict[str, dict[str, object]] = {
        "model": {"path": job.model, "gradient_checkpointing": job.gradient_checkpointing},
        "data": {"path": job.data, "draw": "in_order"},
        "reward": {"use": [f"{HERE / 'judging.py'}:{job.reward}"]},
        "sampling": {
            "prompts_per_step": job.num_prompts,
            "group_size": job.group_size,
            "max_tokens": job.new_tokens,
            "ignore_eos": job.fixed_length,
        },
        "algo": {"recipe": "grpo", "kl": "k3", "kl_coef": job.kl_coef},
        "optim": {
            "name": job.optimizer,
            "lr": job.lr,
            "options": {"betas": [job.beta1, job.beta2]},
            "warmup": job.warmup_steps,
        },
        "run": {"name": f"muster-{job.name}", "dir": str(folder), "steps": 10_000, "seed": job.seed},
    }
    settings["run"]["threads"] = job.threads
    if job.lora_rank:
        settings["model"]["lora"] = {
            "rank": job.lora_rank,
            "alpha": float(job.lora_rank),
            "targets": list(LORA_TARGETS),
        }
    if job.quantize:
        settings["model"]["quantize"] = job.quantize
    if job.held_out:
        settings["data"]["eval_path"] = job.held_out
        settings["eval"] = {"every": job.eval_every, "prompts": job.eval_prompts, "at_start": False}
    return from_mapping(settings)


@contextmanager
def session(job: Job, folder: Path) -> Generator[Run]:
    """The objects of the run that the job describes, before its first step."""
    config = configuration(job, folder)
    torch.set_num_threads(job.threads)
    materials = prepare(config, lambda _: None)
    with closing(materials.grader):
        policy = load_policy(config.model, materials.tokenizer, seed=job.seed, say=lambda _: None)
        yield assemble(materials, policy, unwatched)


def prompts_of(run: Run, count: int) -> list[Prompt]:
    """The first prompts of the job's data, each with a random stream of its own."""
    return [Prompt(ids=item.ids, key=StreamKey(1, 1, slot, 0)) for slot, item in enumerate(run.items[:count])]


def sample(
    run: Run, prompts: Sequence[Prompt], group_size: int, tokens: int = NEW_TOKENS
) -> list[list[Completion]]:
    """Groups of completions of exactly that many tokens, from the run's own engine.

    Raises AssertionError where one has another length.
    """
    sampling = Sampling(group_size=group_size, max_tokens=tokens, ignore_eos=True)
    groups = run.collector.engine.generate(prompts, sampling)
    lengths = {len(completion.ids) for group in groups for completion in group}
    assert lengths == {tokens}, f"completions have {lengths} tokens instead of {tokens}"
    return groups


class _OfLengths(Rollouts):
    """Rollouts that each end at a length of their own, as if the model had drawn its end token there."""

    def __init__(
        self,
        keys: Sequence[tuple[Sequence[int], int]],
        sampling: Sampling,
        tokenizer: Decodes,
        lengths: Sequence[int],
    ) -> None:
        super().__init__(keys, sampling, tokenizer)
        self.lengths = lengths

    def is_done(self, rollout: int) -> bool:
        """At its length."""
        return len(self.ids[rollout]) >= self.lengths[rollout]


def sample_to(
    run: Run, prompts: Sequence[Prompt], each: int, lengths: Sequence[int], *, max_rows: int
) -> list[Completion]:
    """`each` completions of every prompt, of exactly the prompt's length, so many rows side by side.

    By the run's own engine and its own loop: all that is put in its place is when a row is done. Raises
    AssertionError where a completion has another length.
    """
    engine = run.collector.engine
    assert isinstance(engine, LocalEngine), "another engine samples elsewhere"
    sampling = Sampling(group_size=each, max_tokens=max(lengths), ignore_eos=True)
    keys = [(prompt.stream, index) for prompt in prompts for index in range(each)]
    limits = [length for length in lengths for _ in range(each)]
    rollouts = _OfLengths(keys, sampling, engine.policy.tokenizer, limits)
    ids, seats = [prompt.ids for prompt in prompts], min(max_rows, len(keys))
    # The engine's own loop: no other caller needs rows that end at a given length.
    with (
        engine._weights_at_hand(),  # pyright: ignore[reportPrivateUsage]
        engine._decoder(ids, sampling, seats) as decoder,  # pyright: ignore[reportPrivateUsage]
    ):
        engine._sample(rollouts, decoder, len(keys))  # pyright: ignore[reportPrivateUsage]
    completions = rollouts.completions(engine.version)
    assert [len(completion.ids) for completion in completions] == limits
    return completions


def batch_of(prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> Batch:
    """Completions as an update gets them, with advantages that alternate in sign."""
    rows = [
        Row(number, completion, 1.0 if index % 2 else -1.0)
        for number, group in enumerate(groups)
        for index, completion in enumerate(group)
    ]
    return collate([prompt.ids for prompt in prompts], rows)


def update_once(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    objective: Objective,
    *,
    max_grad_norm: float = 1.0,
) -> Updated:
    """One update on the batch, as a run does it, in one micro-batch."""
    return update(
        policy,
        optimizer,
        batch,
        count_totals(batch, 0, 0, NEW_TOKENS),
        objective,
        max_grad_norm=max_grad_norm,
        budget=Budget(tokens=BUDGET_TOKENS),
        clock=Clock(),
    )
