"""From measured seconds to those of a run: worked by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from muster.preflight.costs import Measured, heaviest, pace_of, predict, seconds_per_byte, step_shape
from muster.preflight.rehearsal import Sampled, Update, Wave
from toy_run import completion_of, group_of, toy_run


def wave(longest, tokens, sample_s, *, num_rollouts=8, score_s=0.0):
    return Wave(num_rollouts, longest, tokens, sample_s, score_s)


def group(lengths, rewards=(0.0, 1.0, 0.0, 1.0), slot=0):
    completions = [completion_of([5] * length) for length in lengths]
    return group_of(rewards, completions=completions, slot=slot, name="low_bytes")


GROUPS = (group([4, 2, 2, 2]), group([3, 1, 1, 1], slot=1), group([4, 4, 4, 4], (1.0,) * 4, slot=2))


def measured(*waves, seconds=None, tokens=100, optimizer_bytes=0):
    update = Update(
        tokens=tokens,
        seconds=seconds or {},
        peak_bytes=5_000_000,
        held_bytes=3_000_000,
        optimizer_bytes=optimizer_bytes,
    )
    return Measured(
        sampled=Sampled(groups=GROUPS, waves=waves, peak_bytes=4_000_000),
        update=update,
        start_s=10.0,
        load_s=2.0,
        byte_s=0.0,
        max_rows=8,
    )


def test_the_pace_of_sampling_is_found_from_waves_of_different_shape():
    pace = pace_of(
        [wave(longest, tokens, 0.5 * longest + 0.01 * tokens) for longest, tokens in ((8, 50), (8, 200))]
    )
    assert pace == pytest.approx((0.5, 0.01))
    assert pace.seconds(10, 100) == pytest.approx(6)


def test_neither_part_of_the_pace_is_below_nothing():
    # More tokens in less time: passes alone explain it best.
    pace = pace_of([wave(10, 100, 2.0), wave(10, 200, 1.9)])
    assert pace.token_s == 0
    assert pace.pass_s == pytest.approx(0.195, abs=0.001)
    # Shorter waves that take longer.
    assert pace_of([wave(10, 100, 1.0), wave(5, 200, 2.1)]).pass_s == 0


def test_waves_of_one_shape_are_predicted_as_they_were():
    pace = pace_of([wave(8, 100, 2.0), wave(8, 100, 2.0)])
    assert pace.seconds(8, 100) == pytest.approx(2.0)


def test_a_step_has_the_longest_completion_of_its_groups():
    # Steps of two: the first two groups; the third is no whole step.
    shape = step_shape(GROUPS, 2)
    assert (shape.passes, shape.completion_tokens) == (4, pytest.approx(32 / 3 * 2))
    assert shape.tokens == pytest.approx((32 + 6) / 3 * 2)
    assert step_shape(GROUPS, 1).passes == pytest.approx((4 + 3 + 4) / 3)
    assert step_shape(GROUPS, 6).completion_tokens == 64
    assert [len(heaviest(GROUPS, count)) for count in (1, 2, 9)] == [1, 2, 3]
    assert heaviest(GROUPS, 1) == [GROUPS[2]]


def test_the_seconds_of_a_run_add_up():
    run = toy_run(num_steps=10)
    costs = predict(
        run,
        measured(wave(4, 38, 2.0, score_s=0.4), seconds={"forward": 1.0, "backward": 2.0, "optimizer": 0.5}),
        save_every=0,
    )
    # Two of three groups have a signal: prompts of 2 tokens, completions of 16. A step has 2 groups.
    assert costs.update_s == pytest.approx(3.0 * (20 / 3 * 2) / 100 + 0.5)
    assert costs.score_s == pytest.approx(0.4)
    assert costs.step_s == pytest.approx(costs.sample_s + costs.score_s + (costs.update_s or 0))
    assert costs.export_s == 2
    assert costs.total_s == pytest.approx(10 + 10 * costs.step_s + 2)
    assert (costs.num_evals, costs.eval_s, costs.num_saves) == (0, 0, 1)


def test_a_kl_term_sends_every_group_through_the_update():
    seconds = {"forward": 1.0, "reference": 1.0}
    with_kl = predict(
        toy_run(objective={"kl_coef": 0.1}), measured(wave(4, 38, 2.0), seconds=seconds), save_every=0
    )
    assert with_kl.update_s == pytest.approx(2.0 * (38 / 3 * 2) / 100)


def test_groups_that_are_drawn_again_cost_another_sampling():
    once = predict(toy_run(), measured(wave(4, 38, 2.0)), save_every=0)
    again = predict(toy_run(resample=2), measured(wave(4, 38, 2.0)), save_every=0)
    assert again.sample_s == pytest.approx(once.sample_s * (1 + 1 / 3 + 1 / 9))


def test_the_old_pass_is_spared_on_steps_after_a_sync():
    costs = predict(toy_run(sync_every=4), measured(wave(4, 38, 2.0), seconds={"old": 1.0}), save_every=0)
    assert costs.update_s == pytest.approx(0.75 * (20 / 3 * 2) / 100)


def test_evaluations_and_checkpoints_are_counted():
    run = toy_run(num_steps=10, num_held_out=3)
    assert run.evaluation is not None
    run.evaluation = replace(run.evaluation, every=4)
    found = replace(measured(wave(4, 38, 2.0), optimizer_bytes=1000), byte_s=0.001)
    costs = predict(run, found, save_every=4)
    assert costs.num_evals == 4, "at the start, after 4, after 8, and at the end"
    assert costs.num_saves == 3, "after 4, after 8, and at the end"
    weights = sum(4 * param.numel() for _, param in run.policy.trainable())
    assert costs.save_s == pytest.approx(0.001 * (weights + 1000))


def test_the_peak_is_that_of_the_phase_that_holds_most():
    run = toy_run()
    model = sum(4 * param.numel() for param in run.policy.model.parameters())
    assert predict(run, measured(wave(4, 38, 2.0)), save_every=0).peak_bytes == 5_000_000
    sampling = predict(run, measured(wave(4, 38, 2.0), optimizer_bytes=2_000_000), save_every=0)
    assert sampling.peak_bytes == 6_000_000
    large = measured(wave(4, 38, 2.0))
    assert large.update is not None
    exporting = replace(large, update=replace(large.update, held_bytes=5_000_000))
    assert predict(run, exporting, save_every=0).peak_bytes == 5_000_000 + model


def test_a_probe_of_the_disk_leaves_nothing_behind(tmp_path: Path):
    byte_s = seconds_per_byte({"a": torch.zeros(1000), "b": torch.zeros(3000)}, tmp_path / "not" / "there")
    assert byte_s > 0
    assert list(tmp_path.iterdir()) == []
