"""A warm start: steps that learn given answers, before a run samples its own.

    loss = mean of -logprob over the answers' tokens of the update

Plain maximum likelihood, by the same batch, update and guards as a run that samples: one row per answer, its
advantage 1, no old policy and no reference. A step is one update over `prompts_per_step` answers.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.optim import Optimizer

from muster.algo.objectives import reinforce
from muster.algo.ratios import no_correction
from muster.algo.recipes import Recipe
from muster.algo.weights import by_token
from muster.batch import Batch, Row, collate, count_totals
from muster.clock import Clock
from muster.data import EncodedAnswer
from muster.episodes import without_end
from muster.evaluate import is_due
from muster.learn import count_skips
from muster.policy import Policy, Scores
from muster.records import (
    Completion,
    EvalReport,
    Group,
    Prompt,
    Rollout,
    Score,
    StepReport,
    StreamKey,
    Trace,
)
from muster.runstate import Draw, Plan, Rate, State
from muster.update import Budget, Objective, Updated, score_in_parts, update

SFT = Recipe(name="sft", objective=reinforce, correction=no_correction, weights=by_token)
"""With an advantage of 1, -A * logprob is the negative log-likelihood."""
OBJECTIVE = Objective(recipe=SFT, temperature=1.0)

Metrics = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class HeldOutAnswers:
    """Answers that are scored and never learned, and when."""

    items: Sequence[EncodedAnswer]
    every: int
    """Steps between evaluations; 0: at start and end only."""
    at_start: bool


@dataclass(kw_only=True)
class WarmStart:
    """The objects of a warm start. `train` moves `state`, the policy and the optimizer; the rest stays."""

    policy: Policy
    optimizer: Optimizer
    items: Sequence[EncodedAnswer]
    draw: Draw
    plan: Plan
    rate: Rate
    budget: Budget
    end_ids: frozenset[int]
    """Stop and padding ids: cut from the end of the text that people see."""
    held_out: HeldOutAnswers | None = None
    state: State = field(default_factory=State)
    clock: Clock = field(default_factory=Clock)

    @property
    def engine(self) -> None:
        """Nothing samples."""
        return


def train(run: WarmStart) -> Generator[StepReport]:
    """Steps until the plan's end; ask for the next one, or stop asking.

    A run that starts from step 0 with an evaluation before the first update reports it as step 0.
    """
    if run.state.step == 0 and (before := evaluate_if_due(run)) is not None:
        yield StepReport(
            step=0, groups=(), traces=(), metrics=before.metrics, timings=run.clock.take(), eval=before
        )
    while run.state.step < run.plan.num_steps:
        yield take_step(run)


def take_step(run: WarmStart) -> StepReport:
    """Learns the next answers in one update and, where it is due, evaluates."""
    state, step = run.state, run.state.step + 1
    answers = [run.items[place] for place in run.draw(state, run.plan.prompts_per_step, ())]
    batch = batch_of(answers)
    version, rate = state.version, run.rate(state.updates)
    for settings in run.optimizer.param_groups:
        settings["lr"] = rate
    done = update(
        run.policy,
        run.optimizer,
        batch,
        count_totals(batch, 0, 0, limit=batch.ids.shape[1]),
        OBJECTIVE,
        max_grad_norm=run.plan.max_grad_norm,
        budget=run.budget,
        clock=run.clock,
    )
    skipped = count_skips(state, run.plan, done)
    state.step, state.updates, state.drawn = step, state.updates + 1, state.drawn + len(answers)
    state.num_tokens += sum(answer.num_tokens for answer in answers)
    report = evaluate_if_due(run)
    metrics = {
        **_update_metrics(done),
        **answer_metrics(batch, done.scores),
        "learning_rate": rate,
        "num_tokens": state.num_tokens,
        "epoch": state.drawn / len(run.items),
    }
    return StepReport(
        step=step,
        groups=groups_of(run, answers, done.scores, step=step, version=version),
        traces=tuple((trace,) for trace in _traces(answers, done.scores)),
        metrics={**metrics, **(report.metrics if report else {})},
        timings=run.clock.take(),
        warnings=(skipped,) if skipped else (),
        eval=report,
    )


def batch_of(answers: Sequence[EncodedAnswer]) -> Batch:
    """One row per answer, each of advantage 1; the mask leaves out what a conversation only reads."""
    completions = [_completion(answer, (0.0,) * len(answer.answer_ids), 0) for answer in answers]
    rows = [Row(number, completion, 1.0) for number, completion in enumerate(completions)]
    batch = collate([answer.ids for answer in answers], rows)
    mask = torch.zeros_like(batch.mask)
    for row, answer in enumerate(answers):
        mask[row, : len(answer.mask)] = torch.tensor(answer.mask)
    return replace(batch, mask=mask)


def evaluate_if_due(run: WarmStart) -> EvalReport | None:
    """Loss and accuracy on held-out answers, by the policy as it is; None on a step without an evaluation."""
    step, held_out = run.state.step, run.held_out
    if held_out is None or not is_due(
        step, every=held_out.every, at_start=held_out.at_start, num_steps=run.plan.num_steps
    ):
        return None
    batch = batch_of(held_out.items)
    with run.clock.phase("eval"):
        scores = score_in_parts(run.policy, batch, OBJECTIVE.temperature, run.budget)
    loss = -float(scores.logprobs[batch.mask].double().mean())
    metrics: Metrics = {
        "eval_loss": loss if math.isfinite(loss) else None,
        "eval_perplexity": _exponential(loss),
        "eval_num_tokens": int(batch.mask.sum()),
        **{f"eval_{name}": value for name, value in answer_metrics(batch, scores).items()},
    }
    groups = groups_of(run, held_out.items, scores, step=0, version=run.state.version)
    return EvalReport(step=step, groups=groups, metrics=metrics)


def answer_metrics(batch: Batch, scores: Scores) -> Metrics:
    """What the tokens that count say: how many are the likeliest, entropy, and their number per answer."""
    mask = batch.mask
    entropy = float(scores.entropy[mask].double().mean())
    return {
        "mean_token_accuracy": float(scores.is_likeliest[mask].double().mean()),
        "entropy": entropy if math.isfinite(entropy) else None,
        "num_completions": len(batch),
        "completions/mean_length": float(mask.sum()) / len(batch),
    }


def _update_metrics(done: Updated) -> Metrics:
    return {
        "loss": done.loss if math.isfinite(done.loss) else None,
        "grad_norm": done.grad_norm if math.isfinite(done.grad_norm) else None,
        "updates": int(done.stepped),
        "updates/skipped": int(not done.stepped),
    }


def _exponential(loss: float) -> float | None:
    """Perplexity; None where no float can hold it."""
    return math.exp(loss) if loss < math.log(torch.finfo(torch.float64).max) else None


def groups_of(
    run: WarmStart, answers: Sequence[EncodedAnswer], scores: Scores, *, step: int, version: int
) -> tuple[Group, ...]:
    """The answers as groups of one rollout without a score, so that they are kept and shown as any."""
    found = []
    for slot, answer in enumerate(answers):
        completion = _completion(answer, _row(scores.logprobs, slot, answer), version)
        ids = without_end(answer.answer_ids, run.end_ids)
        text = str(run.policy.tokenizer.decode(ids))
        key = StreamKey(run.plan.seed, step, slot, 0)
        found.append(
            Group(
                id=key.group_id,
                sample=answer.sample,
                prompt=Prompt(ids=answer.ids, key=key),
                prompt_text=answer.text,
                rollouts=(Rollout(completion=completion, text=text, score=Score(value=None)),),
            )
        )
    return tuple(found)


def _completion(answer: EncodedAnswer, logprobs: tuple[float, ...], version: int) -> Completion:
    """The answer as a completion that no sampler gave: its logprobs are the trainer's own."""
    return Completion(ids=answer.answer_ids, sampler_logprobs=logprobs, finish_reason="stop", version=version)


def _traces(answers: Sequence[EncodedAnswer], scores: Scores) -> list[Trace]:
    return [
        Trace(
            reward=None,
            advantage=1.0,
            mask=answer.mask,
            logprobs=_row(scores.logprobs, row, answer),
            entropy=_row(scores.entropy, row, answer),
        )
        for row, answer in enumerate(answers)
    ]


def _row(values: torch.Tensor, row: int, answer: EncodedAnswer) -> tuple[float, ...]:
    """The numbers of an answer's tokens, in the precision of float32, in which they are kept."""
    return tuple(values[row, : len(answer.answer_ids)].float().tolist())
