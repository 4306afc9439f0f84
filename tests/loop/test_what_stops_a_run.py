"""What stops a run: rewards that fail, and a sampler that is not the policy being trained."""

import pytest

from muster.engines.local import LocalEngine
from muster.errors import EngineError, RewardError
from muster.loop import train
from tiny import tiny_policy
from toy_rewards import always_one, low_bytes
from toy_run import Lying, same, toy_run, weights_of


def failing_for(share):
    calls = 0

    def sometimes(completion, completion_ids):
        nonlocal calls
        calls += 1
        if calls % 8 < share * 8:
            raise ValueError("no verdict")
        return low_bytes(completion, completion_ids)

    return sometimes


def test_failed_rewards_below_the_share_leave_their_groups_and_the_run_goes_on():
    reports = list(train(toy_run(reward=failing_for(0.25))))
    assert [report.metrics["rollouts/failed"] for report in reports] == [2, 2, 2]
    failed = [
        trace
        for report in reports
        for group, traces in zip(report.groups, report.traces, strict=True)
        for rollout, trace in zip(group.rollouts, traces, strict=True)
        if rollout.score.is_failure
    ]
    assert len(failed) == 6
    assert all(trace.reward is None and trace.advantage == 0 and not any(trace.mask) for trace in failed)
    assert all(report.metrics["updates"] == 1 for report in reports)


def test_failed_rewards_above_the_share_stop_the_run_before_an_update():
    run = toy_run(reward=failing_for(0.75))
    before = weights_of(run)
    with pytest.raises(RewardError, match="no verdict"):
        list(train(run))
    assert same(before, weights_of(run))


@pytest.mark.parametrize("reward", [low_bytes, always_one])
def test_a_sampler_that_is_not_the_trainers_policy_stops_the_run(reward):
    policy = tiny_policy()
    run = toy_run(policy, reward, engine=Lying(LocalEngine(policy), -0.5))
    with pytest.raises(EngineError, match=r"0\.5 nats at step 1"):
        list(train(run))
