"""What is sampled ahead: by which weights, how it is learned from, and that nobody's speed matters."""

import time
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from beside import Beside, ahead_run
from muster import ahead
from muster.clock import AHEAD, Clock, Overlap
from muster.engines.local import LocalEngine
from muster.engines.queued import Queued
from muster.errors import EngineError, EngineLostError
from muster.learn import Lessons
from muster.loop import train, whole_batch
from muster.records import Prompt, StreamKey
from muster.snapshot import snapshot
from tiny import tiny_policy
from toy_rewards import every_third
from toy_run import number, same, toy_run, weights_of

STEPS = 5


def trained(num_ahead, **settings):
    """The reports of a run and the weights after each of its steps, those of the start first."""
    run, beside = ahead_run(num_ahead, num_steps=STEPS, **settings)
    with closing(run.engine):
        left, reports = [weights_of(run)], []
        for report in train(run):
            reports.append(report)
            left.append(weights_of(run))
    return reports, left, beside


def by_hand(num_ahead):
    """The weights after each step of the same schedule without anything that samples ahead.

    Step s is sampled by the weights that step s - 1 - num_ahead left, on a model of its own, and learned.
    """
    run = toy_run(lr=1e-2, num_steps=STEPS, max_mismatch=100.0)
    left = [weights_of(run)]
    for step in range(1, STEPS + 1):
        engine = LocalEngine(tiny_policy())
        engine.load_weights(left[max(0, step - 1 - num_ahead)].items(), 0)
        items = [run.items[place % 5] for place in (2 * step - 2, 2 * step - 1)]
        keys = [StreamKey(1, step, slot, 0) for slot in range(2)]
        groups = replace(run.collector, engine=engine).collect(items, keys, run.sampling, Clock())
        Lessons(run, groups, whole_batch(groups), run.judge(groups)).learn(step)
        run.state.step, run.state.old_version = step, run.state.version
        left.append(weights_of(run))
    return left


@pytest.mark.parametrize("num_ahead", [1, 2])
def test_a_run_that_samples_ahead_is_the_schedule_by_hand_to_the_last_bit(num_ahead):
    reports, left, _ = trained(num_ahead)
    expected = by_hand(num_ahead)
    assert all(number(report, "updates") == 1 for report in reports)
    assert all(same(ours, theirs) for ours, theirs in zip(left, expected, strict=True))
    assert not same(left[-1], by_hand(0)[-1])


@pytest.mark.parametrize("num_ahead", [1, 3])
def test_each_step_is_sampled_by_the_weights_that_its_number_names(num_ahead):
    reports, _, beside = trained(num_ahead)
    expected = {step: max(0, step - 1 - num_ahead) for step in range(1, STEPS + 1)}
    assert beside.asked == list(expected.items())
    for report in reports:
        versions = {r.completion.version for group in report.groups for r in group.rollouts}
        assert versions == {expected[report.step]}
        age = min(report.step - 1, num_ahead)
        assert report.metrics["sampling/staleness/mean"] == report.metrics["sampling/staleness/max"] == age
        # The proof is against the weights that sampled; what the update sees is how far they are behind.
        assert number(report, "sampling/mismatch") < 1e-5
        gap = number(report, "sampling/sampling_logp_difference/mean")
        assert gap > 1e-3 if age else gap < 1e-5
        ratio = number(report, "sampling/importance_sampling_ratio/max")
        assert 1 < ratio <= 2 if age else ratio == pytest.approx(1, abs=1e-5)
        # The clip is measured against the weights that the step begins with.
        assert number(report, "ratio/max") == 1


def test_who_is_faster_changes_nothing():
    slow, left_slow, _ = trained(1, pause_s=0.03)
    fast, left_fast, _ = trained(1)
    assert [report.metrics for report in slow] == [report.metrics for report in fast]
    assert same(left_slow[-1], left_fast[-1])


def test_prompts_that_replace_others_are_sampled_by_the_weights_of_the_step():
    settings = {"reward": every_third, "resample": 2, "num_items": 9, "sampling": {"max_tokens": 2}}
    reports, left, beside = trained(1, **settings)
    again, left_again, _ = trained(1, pause_s=0.01, **settings)
    assert [report.metrics for report in reports] == [report.metrics for report in again]
    assert same(left[-1], left_again[-1])
    replaced = 0
    version_at_start = 0
    for report in reports:
        late = [group for group in report.groups if group.prompt.key.attempt]
        replaced += len(late)
        assert {r.completion.version for group in late for r in group.rollouts} <= {version_at_start}
        ages = number(report, "sampling/staleness/mean"), number(report, "sampling/staleness/max")
        assert 0 <= ages[0] <= ages[1] <= 1
        version_at_start += int(number(report, "updates"))
    assert replaced > 0
    # Within a step each prompt is another one, whichever round drew it.
    assert all(len({g.sample.id for g in r.groups}) == len(r.groups) for r in reports)
    assert sorted(step for step, _ in beside.asked) == [step for step, _ in beside.asked]


def test_an_evaluation_measures_the_weights_of_its_step():
    run, beside = ahead_run(1, num_held_out=2)
    with closing(run.engine):
        for report in train(run):
            assert report.eval is not None
            versions = {r.completion.version for g in report.eval.groups for r in g.rollouts}
            assert versions == {run.state.version}
            assert number(report, "eval_sampling/mismatch") < 1e-5
        # Of weights only what may still be sampled by is kept.
        assert len(beside.held) <= 2


def test_the_epoch_counts_what_was_trained_on():
    reports, _, _ = trained(2)
    assert [number(report, "epoch") for report in reports] == [2 * step / 5 for step in range(1, STEPS + 1)]


def test_completions_that_are_too_old_are_refused():
    run, _ = ahead_run(2, num_steps=STEPS)
    with closing(run.engine):
        steps = train(run)
        for _ in range(3):
            next(steps)
        run.plan = replace(run.plan, ahead=1)
        with pytest.raises(EngineError, match=r"2 steps behind .* engine\.ahead allows 1"):
            next(steps)


def test_completions_by_other_weights_than_the_flight_names_are_refused():
    run, beside = ahead_run(1)
    with closing(run.engine):
        steps = train(run)
        next(steps)
        beside.change = lambda completion: replace(completion, version=completion.version - 1)
        with pytest.raises(EngineError, match="carries version"):
            list(steps)


def test_weights_that_did_not_reach_the_sampler_are_found():
    run, beside = ahead_run(1, lr=0.1, num_steps=STEPS)
    beside.forgets = True
    with closing(run.engine), pytest.raises(EngineError, match="sampler and trainer disagree"):
        list(train(run))


def test_a_run_whose_sampler_is_lost_can_be_saved_between_two_steps():
    run, beside = ahead_run(1, num_steps=STEPS)

    def lose(step):
        if step == 4:
            raise EngineLostError("gone")

    beside.before = lose
    with closing(run.engine):
        steps = train(run)
        assert [next(steps).step for _ in range(3)] == [1, 2, 3]
        drawn = run.state.drawn
        with pytest.raises(EngineLostError, match="gone"):
            next(steps)
        assert run.state.step == 3
        assert run.state.drawn == drawn == 8
        saved = snapshot(run)
    assert saved.ahead is not None
    [flight] = saved.ahead["flights"]  # pyright: ignore[reportGeneralTypeIssues]
    assert (flight["step"], flight["completions"]) == (4, None)


def test_seconds_of_sampling_beside_a_step_are_those_that_nobody_waited_for():
    overlap = Overlap()
    with overlap.working():
        time.sleep(0.02)
    assert overlap.take() >= 0.02
    with overlap.waiting(), overlap.working():
        time.sleep(0.02)
    assert overlap.take() == 0.0
    reports, _, _ = trained(1, pause_s=0.02)
    assert all(report.timings[AHEAD] >= 0 for report in reports)
    assert sum(report.timings[AHEAD] for report in reports) > 0
    assert AHEAD not in next(train(toy_run())).timings


def test_orders_are_carried_out_by_the_weights_of_when_they_were_given():
    policy, beside = tiny_policy(), Beside(tiny_policy(), pause_s=0.05)
    engine = Queued(beside, policy.trainable)
    prompts = [Prompt(ids=(5, 6, 7), key=StreamKey(1, 1, 0, 0))]
    sampling = toy_run().sampling
    with closing(engine):
        before = engine.submit(prompts, sampling)
        with torch.no_grad():
            for _, param in policy.trainable():
                param.add_(0.1)
        engine.load_weights(policy.trainable(), 1)
        assert sorted(beside.held) == ["0", "1"]
        after = engine.generate(prompts, sampling)
        assert {c.version for c in engine.wait(before)[0]} == {0}
        assert {c.version for c in after[0]} == {1}
        engine.load_weights(policy.trainable(), 2)
        assert sorted(beside.held) == ["2"]


def test_flights_are_the_same_after_a_checkpoint():
    run, _ = ahead_run(2, num_steps=STEPS)
    with closing(run.engine):
        steps = train(run)
        next(steps)
        saved = ahead.to_plain(run)
        flights = run.state.flights
        ahead.restore(run, saved)
        assert saved is not None
        for ours, theirs in zip(run.state.flights, flights, strict=True):
            assert replace(ours, sampled=theirs.sampled) == theirs
            assert ours.sampled.result() == theirs.sampled.result()
