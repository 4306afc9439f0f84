"""Part `gradient`: both sides' gradients of one shared batch of rollouts.

Muster samples; the rollouts are cut to uneven lengths, and old and reference logprobs are moved away
from the policy's, so that the clip and the KL term are both at work. The batch then goes through
Muster's update, and through the loss of TRL's trainer.
"""

from dataclasses import replace

import torch
from torch import Tensor

from keeping import Settings, save, say
from muster.batch import Batch
from muster.pretrained import load_tokenizer
from muster.runstate import Run
from muster_side import batch_of, prompts_of, sample, session, update_once
from trl_side import trainer_of
from workloads import WORKLOADS, Job, exact_prompts, write_prompts

TOLERANCE = 1e-4
"""Of the difference's norm, relative to the gradient's."""
GROUP_SIZE = 4
PROMPT_TOKENS = (66, 97)
NO_LIMIT = 1e30
"""A norm that no gradient is cut to."""
NOISE = {"old": 0.15, "reference": 0.3}
"""Nats, standard deviation: some ratios then lie outside 1 +- 0.2."""

Gradients = dict[str, Tensor]


def measure(settings: Settings) -> None:
    """Compares the gradients; raises AssertionError where they disagree."""
    tokenizer = load_tokenizer(settings.model)
    texts = [exact_prompts(tokenizer, 1, tokens)[0] for tokens in PROMPT_TOKENS]
    data = write_prompts(settings.work / "gradient.jsonl", texts)
    base = WORKLOADS[0].job(settings.model, data, settings.threads)
    job = replace(base, name="gradient", group_size=GROUP_SIZE)
    with session(job, settings.work) as run:
        batch = _rollouts(run, job)
        say("gradient: rollouts are sampled; Muster's update on them")
        ours = _muster_gradients(run, batch)
    say("gradient: TRL's loss on the same rollouts")
    theirs = _trl_gradients(job, settings, batch)
    norms = compared(ours, theirs)
    difference = norms["relative_difference"]
    ratios = (batch.sampler_logprobs - _old(batch)).exp()[batch.mask]
    shape = {
        "rollouts": len(batch),
        "lengths": batch.lengths.tolist(),
        "kl_coef": job.kl_coef,
        "share_outside_clip": float(((ratios - 1).abs() > 0.2).float().mean()),
        "tolerance": TOLERANCE,
    }
    say(f"gradient: relative difference {difference:.1e}; at most {TOLERANCE:.0e} is let pass")
    assert difference <= TOLERANCE, "the two sides do not compute the same gradient"
    save(settings, "gradient", {**norms, **shape})


def _rollouts(run: Run, job: Job) -> Batch:
    """Completions of uneven length, with old and reference logprobs that differ from the policy's."""
    prompts = prompts_of(run, job.num_prompts)
    groups = [
        [
            replace(c, ids=c.ids[:cut], sampler_logprobs=c.sampler_logprobs[:cut])
            for number, c in enumerate(group)
            for cut in [job.new_tokens - 11 * number]
        ]
        for group in sample(run, prompts, job.group_size, job.new_tokens)
    ]
    batch = batch_of(prompts, groups)
    generator = torch.Generator().manual_seed(job.seed)
    noise = {what: torch.randn(batch.ids.shape, generator=generator) * size for what, size in NOISE.items()}
    return replace(
        batch,
        advantages=torch.randn(len(batch), generator=generator),
        old_logprobs=(batch.sampler_logprobs + noise["old"]) * batch.mask,
        ref_logprobs=(batch.sampler_logprobs + noise["reference"]) * batch.mask,
    )


def _old(batch: Batch) -> Tensor:
    assert batch.old_logprobs is not None
    return batch.old_logprobs


def _muster_gradients(run: Run, batch: Batch) -> Gradients:
    """What the optimizer is about to step with; its rate is 0."""
    found: Gradients = {}
    optimizer = torch.optim.SGD([param for _, param in run.policy.trainable()], lr=0.0)
    optimizer.register_step_pre_hook(
        lambda *_: found.update({n: p.grad.clone() for n, p in run.policy.trainable() if p.grad is not None})
    )
    # TRL corrects for the sampler's lag only with vLLM: with the sampler at the old policy there is none.
    update_once(
        run.policy,
        optimizer,
        replace(batch, sampler_logprobs=_old(batch)),
        run.objective,
        max_grad_norm=NO_LIMIT,
    )
    return found


def _trl_gradients(job: Job, settings: Settings, batch: Batch) -> Gradients:
    """The gradient of the loss of TRL's trainer on the batch, as its own step would prepare it."""
    trainer = trainer_of(job, settings.work)
    model = trainer.model
    assert model is not None
    # Training sets it as it starts: the loss of a step is divided by it.
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    trainer.compute_loss(model, trl_inputs(batch)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def trl_inputs(batch: Batch) -> dict[str, Tensor | None]:
    """The batch in the form that TRL's loss reads: prompts padded on the left."""
    prompts = [batch.prompts[group] for group in batch.group.tolist()]
    width = max(map(len, prompts))
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return {
        "prompt_ids": ids,
        "prompt_mask": mask,
        "completion_ids": batch.ids,
        "completion_mask": batch.mask.long(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old_logprobs,
        "ref_per_token_logps": batch.ref_logprobs,
        "num_items_in_batch": batch.mask.sum(),
    }


def compared(ours: Gradients, theirs: Gradients) -> dict[str, float]:
    """Norms of both, and of their difference relative to TRL's, over all parameters, in float64."""
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())[:4]
    squares = torch.zeros(3, dtype=torch.float64)
    for name, gradient in theirs.items():
        mine, other = ours[name].double(), gradient.double()
        squares += torch.stack([mine.square().sum(), other.square().sum(), (mine - other).square().sum()])
    norm, other_norm, difference = squares.sqrt().tolist()
    return {
        "muster_norm": norm,
        "trl_norm": other_norm,
        "relative_difference": difference / other_norm,
        "parameters": len(theirs),
    }
