"""Whole steps on a tiny model: what is learned, what is counted, what stops the run."""

import json
import math
from dataclasses import replace

import pytest
import torch

from muster.algo.objectives import clip
from muster.algo.recipes import DAPO, GRPO
from muster.engines.local import LocalEngine
from muster.errors import TrainingError
from muster.loop import train
from muster.records import Completion, StreamKey
from tiny import tiny_policy
from toy_rewards import always_one, low_bytes
from toy_run import Lying, held_out, number, only_at_step, same, toy_run, weights_of

KEY = StreamKey(1, 9, 0, 0)


def test_the_reward_rises_to_nearly_all_there_is():
    run = toy_run(reward=low_bytes, lr=3e-3, sampling={"group_size": 16}, num_steps=30)
    rewards = [number(report, "reward") for report in train(run)]
    assert sum(rewards[:3]) / 3 < 0.7
    assert sum(rewards[-3:]) / 3 > 0.9


def test_a_step_without_signal_leaves_the_weights_bit_identical_and_is_counted():
    run = toy_run(reward=always_one)
    before = weights_of(run)
    reports = list(train(run))
    assert [report.step for report in reports] == [1, 2, 3]
    assert same(before, weights_of(run))
    assert all("nothing to learn from" in report.warnings[0] for report in reports)
    assert not run.optimizer.state
    for report in reports:
        assert report.metrics["loss"] is None
        assert report.metrics["grad_norm"] is None
        assert report.metrics["updates"] == 0
        assert report.metrics["frac_reward_zero_std"] == 1
        assert all(trace.logprobs == () for group in report.traces for trace in group)
    assert run.state.version == 0


def test_the_learning_rate_moves_on_over_steps_without_signal():
    run = toy_run(reward=always_one, minibatches=2, passes=2)
    list(train(run))
    assert run.state.updates == 12


def test_momentum_does_not_move_weights_on_a_step_without_signal():
    run = toy_run(reward=only_at_step(1, low_bytes))
    steps = train(run)
    assert next(steps).metrics["updates"] == 1
    after_first = weights_of(run)
    list(steps)
    assert same(after_first, weights_of(run))


def test_metrics_are_finite_or_absent_and_carry_trl_names():
    run = toy_run(objective={"kl_coef": 0.1}, num_held_out=2)
    reports = list(train(run))
    expected = {
        "loss", "grad_norm", "learning_rate", "epoch", "num_tokens", "reward", "reward_std",
        "frac_reward_zero_std", "rewards/low_bytes/mean", "rewards/low_bytes/std", "entropy", "kl",
        "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean",
        "completions/mean_length", "completions/min_length", "completions/max_length",
        "completions/clipped_ratio", "completions/mean_terminated_length",
        "completions/min_terminated_length", "completions/max_terminated_length", "eval_reward",
        "sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean",
    }  # fmt: skip
    assert expected <= reports[1].metrics.keys()
    for report in reports:
        json.dumps(report.metrics, allow_nan=False)


def test_tokens_are_counted_over_the_run():
    run = toy_run(sampling={"ignore_eos": True})
    counts = [report.metrics["num_tokens"] for report in train(run)]
    reports = list(train(toy_run(sampling={"ignore_eos": True})))
    steps = [sum(4 * (len(g.prompt.ids) + 4) for g in report.groups) for report in reports]
    assert counts == [steps[0], steps[0] + steps[1], sum(steps)]


def test_the_logged_loss_does_not_depend_on_the_token_budget():  # B80d
    first, second = (
        next(train(toy_run(budget_tokens=budget, minibatches=2, recipe=DAPO))).metrics for budget in (1, 4096)
    )
    assert first["loss"] == pytest.approx(second["loss"], abs=1e-6)
    assert first["grad_norm"] == pytest.approx(second["grad_norm"], rel=1e-4)


def observed(recipe, seen):
    """The recipe, its objective noting how far the ratio is from 1."""

    def objective(tokens):
        log_ratio = (tokens.logprobs - tokens.old_logprobs).detach()[tokens.mask]
        if tokens.logprobs.grad_fn is not None:
            seen.append(float(log_ratio.abs().max()))
        return recipe.objective(tokens)

    return replace(recipe, objective=objective)


@pytest.mark.parametrize("sync_every", [1, 2])
def test_the_ratio_is_exactly_one_at_the_first_update_only(sync_every):  # B25
    seen = []
    run = toy_run(
        recipe=observed(GRPO, seen), lr=1e-2, minibatches=2, passes=2, num_steps=1, sync_every=sync_every
    )
    [report] = train(run)
    # The metrics ask the objective too, for what is clipped: two calls for each update.
    assert report.metrics["updates"] == 4
    assert seen[0] == 0.0
    assert all(gap > 1e-4 for gap in seen[2:])
    assert number(report, "clip_ratio/region_mean") > 0


def test_every_rollout_is_trained_on_once_a_pass():
    seen = []

    def objective(tokens):
        if tokens.logprobs.grad_fn is not None and tokens.logprobs.dtype == torch.float32:
            seen.extend(round(x, 4) for x in tokens.sampler_logprobs.sum(1).tolist())
        return clip(tokens)

    run = toy_run(
        recipe=replace(GRPO, objective=objective), minibatches=3, passes=2, num_steps=1, budget_tokens=1
    )
    [report] = train(run)
    rollouts = [sum(r.completion.sampler_logprobs) for g in report.groups for r in g.rollouts]
    taught = [
        value
        for value, group in zip(rollouts, (g for g in report.groups for _ in g.rollouts), strict=True)
        if len({r.score.value for r in group.rollouts}) > 1
    ]
    assert sorted(seen) == pytest.approx(sorted(taught * 2), abs=1e-3)


def test_old_logprobs_are_those_of_the_weights_that_sampled():
    run = toy_run(lr=1e-2, minibatches=2, sync_every=3, num_steps=4)
    for report in train(run):
        for group, traces in zip(report.groups, report.traces, strict=True):
            for rollout, trace in zip(group.rollouts, traces, strict=True):
                if trace.old_logprobs:
                    assert trace.old_logprobs == pytest.approx(rollout.completion.sampler_logprobs, abs=1e-4)
        versions = {r.completion.version for g in report.groups for r in g.rollouts}
        assert len(versions) == 1
        assert (versions == {0}) == (report.step <= 3)


def test_the_sampler_stays_on_the_synced_copy():
    run = toy_run(lr=1e-2, sync_every=2, num_steps=3)
    start = weights_of(run)
    steps = train(run)
    next(steps)
    assert same(run.state.old, start)
    assert not same(weights_of(run), start)
    next(steps)
    assert same(run.state.old, weights_of(run))


def test_a_sampler_that_does_not_lag_costs_no_second_copy_of_the_weights():
    policy = tiny_policy()
    engine = LocalEngine(policy)
    run = toy_run(policy, engine=engine, lr=1e-2)
    versions = [report.groups[0].rollouts[0].completion.version for report in train(run)]
    assert versions == [0, 1, 2]
    assert run.state.old is None
    with torch.no_grad():
        for _, param in policy.trainable():
            param.zero_()
    prompts = [group.prompt for group in run.collector.collect(run.items[:1], [KEY], run.sampling, run.clock)]
    [[first, *_]] = engine.generate(prompts, run.sampling)
    assert first.sampler_logprobs[0] == pytest.approx(-math.log(259), abs=1e-5)


def test_a_skipped_update_is_counted_and_the_run_goes_on():
    calls = 0

    def sometimes_nan(tokens):
        nonlocal calls
        calls += 1
        return clip(tokens) * (math.nan if calls in (3, 4) else 1.0)  # the objective and its metrics

    run = toy_run(recipe=replace(GRPO, objective=sometimes_nan), num_steps=3)
    versions = []
    weights = []
    reports = []
    for report in train(run):
        reports.append(report)
        versions.append(run.state.version)
        weights.append(weights_of(run))
    assert [report.metrics["updates/skipped"] for report in reports] == [0, 1, 0]
    assert [report.metrics["updates"] for report in reports] == [1, 0, 1]
    assert versions == [1, 1, 2]
    assert same(weights[0], weights[1])
    assert not same(weights[1], weights[2])
    assert any("skipped" in text for text in reports[1].warnings)
    assert reports[1].metrics["loss"] is None
    assert run.state.updates == 3
    assert run.state.skipped_in_a_row == 0


def test_a_skipped_update_does_not_hide_the_loss_of_the_others():  # B80a
    calls = 0

    def first_is_nan(tokens):
        nonlocal calls
        calls += 1
        return clip(tokens) * (math.nan if calls <= 2 else 1.0)

    run = toy_run(
        recipe=replace(GRPO, objective=first_is_nan), num_steps=1, minibatches=2, budget_tokens=4096
    )
    [report] = train(run)
    assert report.metrics["updates/skipped"] == 1
    assert report.metrics["loss"] is not None
    assert number(report, "grad_norm") > 0


def test_too_many_skipped_updates_in_a_row_stop_the_run():
    recipe = replace(GRPO, objective=lambda tokens: clip(tokens) * math.nan)
    run = toy_run(recipe=recipe, num_steps=9, max_skipped=2)
    before = weights_of(run)
    steps = train(run)
    assert [next(steps).step for _ in range(2)] == [1, 2]
    with pytest.raises(TrainingError, match="3 updates in a row"):
        next(steps)
    assert same(before, weights_of(run))


def test_groups_without_signal_are_drawn_again_and_recorded():
    asked = []

    def from_third_attempt(completion, completion_ids, sample_id):
        asked.append(sample_id)
        return low_bytes(completion, completion_ids) if len(asked) > 16 else 0.0

    run = toy_run(reward=from_third_attempt, resample=3, num_steps=1)
    [report] = train(run)
    assert len(report.groups) == 6
    assert {group.id for group in report.groups} == {f"1-{s}-{a}" for s in (0, 1) for a in (0, 1, 2)}
    assert run.state.drawn == 6
    assert report.metrics["epoch"] == 6 / 5
    assert report.metrics["num_completions"] == 24
    for group, traces in zip(report.groups, report.traces, strict=True):
        is_last = group.prompt.key.attempt == 2
        assert all(any(trace.mask) == is_last for trace in traces)
        assert all(bool(trace.logprobs) == is_last for trace in traces)
    assert not any("resampling" in warning for warning in report.warnings)


def test_the_bound_on_resampling_is_said_and_the_step_goes_on():
    run = toy_run(reward=always_one, resample=2, num_steps=1)
    [report] = train(run)
    assert run.state.drawn == 6
    assert "2 rounds of resampling 2 of 2 groups" in report.warnings[0]


class Empty(Lying):
    """An engine whose first completions have no tokens."""

    def generate(self, prompts, sampling):
        groups = super().generate(prompts, sampling)
        version = groups[0][0].version
        nothing = Completion(ids=(), sampler_logprobs=(), finish_reason="stop", version=version)
        return [[nothing, *group[1:]] for group in groups]


def by_length(completion: str, completion_ids: list[int]) -> float:
    return float(len(completion_ids))


def test_a_completion_without_tokens_is_graded_and_left_out_of_the_loss():
    policy = tiny_policy()
    run = toy_run(policy, by_length, engine=Empty(LocalEngine(policy), 0.0), objective={"kl_coef": 0.1})
    for report in train(run):
        assert report.metrics["completions/min_length"] == 0
        assert report.metrics["updates"] == 1
        assert math.isfinite(number(report, "loss"))


def test_evaluation_does_not_change_training_by_a_bit():  # P18
    without, with_eval = toy_run(lr=1e-2, sync_every=2), toy_run(lr=1e-2, sync_every=2, num_held_out=3)
    plain = list(train(without))
    evaluated = list(train(with_eval))
    assert evaluated[0].step == 0
    assert evaluated[0].groups == ()
    assert [report.eval is not None for report in evaluated] == [True] * 4
    assert same(weights_of(without), weights_of(with_eval))
    for first, second in zip(plain, evaluated[1:], strict=True):
        assert first.groups == second.groups
        assert first.traces == second.traces
        assert first.metrics == {k: v for k, v in second.metrics.items() if not k.startswith("eval_")}


def test_evaluation_uses_the_same_streams_every_time():
    run = toy_run(reward=always_one, num_held_out=2, num_steps=2)
    reports = list(train(run))
    first = held_out(reports[0])
    assert [held_out(report).groups for report in reports] == [first.groups] * 3
    assert {group.prompt.key.step for group in first.groups} == {0}


def test_evaluation_looks_at_the_newest_weights_where_the_sampler_lags():
    run = toy_run(lr=1e-2, sync_every=3, num_held_out=2, num_steps=2)
    versions = [held_out(report).groups[0].rollouts[0].completion.version for report in train(run)]
    assert versions == [0, 1, 2]


def noting(completions, log_metric, log_extra, trainer_state):
    log_metric("mean_chars", sum(len(text) for text in completions) / len(completions))
    log_metric("reward", 123.0)
    log_metric("step", 999.0)
    log_extra("parsed", [text.upper() for text in completions])
    return [float(len(text)) for text in completions]


def test_what_rewards_note_beside_the_score_is_reported():
    run = toy_run(reward=noting, num_held_out=2, num_steps=2)
    start, first, second = train(run)
    assert "mean_chars" not in start.metrics
    assert number(start, "eval_mean_chars") > 0
    assert len(held_out(start).extras["parsed"]) == 4
    for report in (first, second):
        assert len(report.extras["parsed"]) == 8
        texts = [r.text for g in report.groups for r in g.rollouts]
        assert report.metrics["mean_chars"] == pytest.approx(sum(map(len, texts)) / 8)
        assert report.metrics["logged/reward"] == 123.0
        assert report.metrics["reward"] != 123.0
        assert "step" not in report.metrics
        assert len(held_out(report).extras["parsed"]) == 4


def test_what_stands_in_the_way_is_said_once_after_the_first_step():
    first, *later = train(toy_run(sampling={"max_tokens": 2}))
    assert "of 8 completions were cut at 2 tokens. Try sampling.max_tokens = 4" in first.warnings[-1]
    assert [warning for report in later for warning in report.warnings] == []


def test_held_out_completions_count_in_what_stands_in_the_way():
    before, first, *_ = train(toy_run(reward=always_one, num_held_out=2))
    assert len(held_out(before).groups) == 2
    # 2 prompts of 4 completions in the step, 2 of 2 held out.
    assert "all 12 rollouts of 4 prompts got the same reward, 1" in " ".join(first.warnings)


def test_rewards_are_told_the_step_that_is_evaluated():
    def step(completion, trainer_state):
        return float(trainer_state.global_step)

    reports = [report.eval for report in train(toy_run(reward=step, num_held_out=2)) if report.eval]
    assert [report.metrics["eval_reward"] for report in reports] == [0, 1, 2, 3]
    # What is drawn is the same each time.
    assert len({tuple(group.prompt.key for group in report.groups) for report in reports}) == 1
