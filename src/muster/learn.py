"""The updates of one step, and the proof that what was sampled is the policy being trained."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from muster.algo import metrics as sums
from muster.batch import Batch, count_totals
from muster.errors import TrainingError
from muster.judge import Verdict
from muster.proof import prove, refuse_mismatch
from muster.records import Completion, Group, Trace
from muster.runstate import Plan, Run, State
from muster.update import Objective, Updated, score_in_parts, update


class Lessons:
    """The updates of one step and what they leave behind for the report."""

    def __init__(self, run: Run, groups: Sequence[Group], batch: Batch, verdict: Verdict) -> None:
        self.run = run
        self.groups = groups
        self.verdict = verdict
        here = present(groups)
        self.counts, self.rows = taking_part(groups, batch, verdict, run.objective)
        advantages = verdict.advantages[here].to(batch.advantages.dtype)
        self.batch = replace(batch, advantages=advantages).select(self.rows)
        self.results: list[Updated] = []
        self.warnings: list[str] = []
        self.last_rate: float | None = None
        self.mismatch: float | None = None
        """Mean |logprob difference| of sampler and trainer, in nats, over the tokens scored first."""
        shape = self.batch.ids.shape
        self.logprobs, self.entropy = torch.zeros(shape), torch.zeros(shape)

    def learn(self, step: int) -> None:
        """Every pass over every minibatch, each one update."""
        plan, state = self.run.plan, self.run.state
        num_updates = plan.minibatches * plan.passes
        if not self.rows:
            state.updates += num_updates
            self.warnings.append(
                "nothing to learn from: no rollout that counts has an advantage; the weights stay"
            )
            temperature = self.run.objective.temperature
            if not plan.ahead:
                self.mismatch = prove(
                    self.run, self.groups, step=step, temperature=temperature, weights=state.old
                )
            return
        self.batch = add_reference(self.run, self.batch)
        if num_updates > 1 or not state.is_on_policy:
            with self.run.clock.phase("old"), self.run.policy.using(state.old):
                old = score_in_parts(
                    self.run.policy, self.batch, self.run.objective.temperature, self.run.budget
                )
            self.batch = replace(self.batch, old_logprobs=old.logprobs)
        for number in range(plan.passes):
            for members in minibatches(self.counts, plan, step, number):
                self._update(members)
                state.updates += 1

    def _update(self, members: list[int]) -> None:
        run, state = self.run, self.run.state
        row_of = {rollout: row for row, rollout in enumerate(self.rows)}
        rows = [row_of[rollout] for rollout in members if rollout in row_of]
        if not rows:
            return
        lengths = [rollout.completion.num_emitted for group in self.groups for rollout in group.rollouts]
        idle = [rollout for rollout in members if rollout not in row_of]
        batch = self.batch.select(rows)
        if state.is_on_policy:
            # These very weights sampled, so the ratio is 1 to the last bit: another forward pass,
            # whose micro-batches are cut otherwise, would not be.
            batch = replace(batch, old_logprobs=None)
        totals = count_totals(batch, len(idle), sum(lengths[r] for r in idle), run.sampling.max_tokens)
        self.last_rate = run.rate(state.updates)
        for settings in run.optimizer.param_groups:
            settings["lr"] = self.last_rate

        def check(stats: Mapping[str, sums.Metric]) -> None:
            # What was sampled ahead is by older weights, and was proven to be theirs when it was taken.
            if not self.results and not run.plan.ahead:
                self.mismatch = _proven_by(run, self.groups, stats)

        done = update(
            run.policy,
            run.optimizer,
            batch,
            totals,
            run.objective,
            max_grad_norm=run.plan.max_grad_norm,
            budget=run.budget,
            clock=run.clock,
            check=check,
        )
        self.results.append(done)
        self.logprobs[rows] = done.scores.logprobs.to(self.logprobs.dtype)
        self.entropy[rows] = done.scores.entropy.to(self.entropy.dtype)
        if skipped := count_skips(state, run.plan, done):
            self.warnings.append(skipped)

    def traces(self) -> list[tuple[Trace, ...]]:
        """What training computed, per group and rollout."""
        row_of = {rollout: row for row, rollout in enumerate(self.rows)}
        counting = self.counts.tolist()
        traces: list[tuple[Trace, ...]] = []
        number = 0
        for slot, group in enumerate(self.groups):
            members = []
            for index, rollout in enumerate(group.rollouts):
                reward = float(self.verdict.rewards[slot, index])
                members.append(
                    Trace(
                        reward=None if math.isnan(reward) else reward,
                        advantage=float(self.verdict.advantages[slot, index]),
                        mask=_counting(rollout.completion, counting[number]),
                        **self._token_traces(row_of.get(number), len(rollout.completion.ids)),
                    )
                )
                number += 1
            traces.append(tuple(members))
        return traces

    def _token_traces(self, row: int | None, length: int) -> dict[str, tuple[float, ...]]:
        if row is None:
            return {}
        logprobs = self.logprobs if self.results else None
        computed = {
            "old_logprobs": logprobs if self.batch.old_logprobs is None else self.batch.old_logprobs,
            "ref_logprobs": self.batch.ref_logprobs,
            "logprobs": logprobs,
            "entropy": self.entropy if self.results else None,
        }
        return {
            name: tuple(values[row, :length].tolist())
            for name, values in computed.items()
            if values is not None
        }


class TakingPart(NamedTuple):
    """Which rollouts of a step an update sees."""

    counts: Bool[Tensor, " B"]
    """In the loss, or in its totals."""
    rows: list[int]
    """Sent through the update: the rest has no gradient."""


def taking_part(groups: Sequence[Group], batch: Batch, verdict: Verdict, objective: Objective) -> TakingPart:
    """The rollouts, numbered as the batch's rows, that count, and those among them that teach."""
    here = present(groups)
    teaches = verdict.signal[:, None] | bool(objective.kl_coef or objective.entropy_coef)
    # A completion without tokens has nothing to learn, and no place in the divisors.
    counts = verdict.counts[here] & (batch.lengths > 0)
    return TakingPart(counts, (counts & teaches.expand_as(here)[here]).nonzero()[:, 0].tolist())


def minibatches(counts: Bool[Tensor, " B"], plan: Plan, step: int, number: int) -> Iterator[list[int]]:
    """Rollouts that count, shuffled anew for every pass (`number`, from 0), each once."""
    counting = counts.nonzero()[:, 0].numpy()
    if plan.minibatches > 1:
        seed = np.random.SeedSequence([plan.seed, step, number])
        counting = np.random.Generator(np.random.Philox(seed)).permutation(counting)
    for members in np.array_split(counting, plan.minibatches):
        yield sorted(members.tolist())


def count_skips(state: State, plan: Plan, done: Updated) -> str:
    """Counts an update that was skipped, and gives the warning; empty for one that was made.

    Raises TrainingError once too many in a row were skipped.
    """
    if done.stepped:
        state.skipped_in_a_row = 0
        state.version += 1
        return ""
    state.skipped_in_a_row += 1
    what = f"loss {done.loss}, gradient norm {done.grad_norm}"
    if state.skipped_in_a_row > plan.max_skipped:
        raise TrainingError(
            f"{state.skipped_in_a_row} updates in a row had no finite gradient ({what}). The weights are "
            "those of the last good update. Lower optim.lr or optim.max_grad_norm, then resume."
        )
    return f"update skipped: {what}; the weights are as they were"


def add_reference(run: Run, batch: Batch) -> Batch:
    """The batch with reference logprobs, where the run has a reference; computed once."""
    if run.reference is None or batch.ref_logprobs is not None or len(batch) == 0:
        return batch
    with run.clock.phase("reference"), run.policy.using(run.reference):
        scores = score_in_parts(run.policy, batch, run.objective.temperature, run.budget)
    return replace(batch, ref_logprobs=scores.logprobs)


def present(groups: Sequence[Group]) -> Tensor:
    """[P G] True where a group has a rollout; groups may differ in size."""
    sizes = torch.tensor([len(group.rollouts) for group in groups])
    return torch.arange(int(sizes.max())) < sizes[:, None]


def _proven_by(run: Run, groups: Sequence[Group], stats: Mapping[str, sums.Metric]) -> float | None:
    """The sampler's difference, by the step's first update: its forward scored what was sampled anyway."""
    gap = stats["sampling/sampling_logp_difference/mean"].value
    refuse_mismatch(
        run,
        gap,
        groups,
        step=run.state.step + 1,
        temperature=run.objective.temperature,
        weights=run.state.old,
    )
    return gap


def _counting(completion: Completion, counts: bool) -> tuple[bool, ...]:
    """Per token whether it counts in the loss: of a rollout that does, those that the policy emitted."""
    if completion.emitted is None or not counts:
        return (counts,) * len(completion.ids)
    return completion.emitted
