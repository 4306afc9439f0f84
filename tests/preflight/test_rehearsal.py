"""Groups and an update as the run would have them: the same tokens, and weights that stay."""

import pytest

from muster.loop import take_step
from muster.preflight.rehearsal import rehearse_update, sample_groups
from toy_run import same, toy_run, weights_of


def sampled(run, num_groups=4, **options):
    return sample_groups(
        run, num_groups, **{"num_wide": 2, "limit_s": None, "say": lambda _: None, **options}
    )


def ids_of(groups):
    return [[rollout.completion.ids for rollout in group.rollouts] for group in groups]


def test_the_groups_are_those_that_the_first_step_draws():
    report = take_step(toy_run(lr=0.0))
    groups = sampled(toy_run()).groups
    assert ids_of(groups[:2]) == ids_of(report.groups)
    assert [group.id for group in groups] == ["1-0-0", "1-1-0", "2-0-0", "2-1-0"]


def test_there_are_no_more_groups_than_prompts():
    found = sampled(toy_run(num_items=3), num_groups=16)
    assert len(found.groups) == 3
    assert [wave.num_rollouts for wave in found.waves] == [8, 4]


def test_sampling_stops_where_it_would_take_longer_than_it_may():
    said = []
    found = sampled(toy_run(), num_groups=5, limit_s=0.0, say=said.append)
    assert len(found.groups) == 2
    assert "2 of 5 groups sampled" in said[-1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"objective": {"kl_coef": 0.1}},
        {"minibatches": 2, "passes": 2},
        {"sync_every": 3},
        {"kl_in_reward": 0.1},
        {"judge": {"mask_truncated": True}},
    ],
)
def test_a_rehearsed_update_leaves_the_weights_as_they_were(changes):
    run = toy_run(lr=1.0, **changes)
    before = weights_of(run)
    update = rehearse_update(run, sampled(run).groups)
    assert update is not None
    assert same(before, weights_of(run))
    assert all(param.grad is None for _, param in run.policy.trainable())
    assert update.optimizer_bytes >= 2 * sum(4 * param.numel() for _, param in run.policy.trainable())
    assert {"forward", "backward", "optimizer"} <= update.seconds.keys()
    assert ("old" in update.seconds) == ("minibatches" in changes or "sync_every" in changes)


def test_an_update_without_signal_is_rehearsed_all_the_same():
    run = toy_run(reward=lambda completion: 0.0)
    groups = sampled(run, num_groups=2).groups
    update = rehearse_update(run, groups)
    assert update is not None
    lengths = [len(rollout.completion.ids) for group in groups for rollout in group.rollouts]
    assert update.tokens == sum(lengths) + sum(len(group.prompt.ids) for group in groups)
