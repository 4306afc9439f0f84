from functools import partial, reduce
from math import nan

import pytest
import torch

from muster.algo.metrics import (
    EffectiveSize,
    Peak,
    Stat,
    effective_size,
    is_clipped,
    merge,
    peak,
    stat,
    token_metrics,
    values,
)
from muster.algo.objectives import OBJECTIVES, cispo, clip, gspo, reinforce
from muster.algo.ratios import no_correction, truncate

ALL = torch.tensor([[True] * 4])


def test_means_of_parts_are_weighted_by_their_tokens():  # B79
    two, six = Stat(2 * 1.0, 2), Stat(6 * 3.0, 6)
    assert (two + six).value == 2.5


def test_nothing_has_no_mean_and_no_peak():
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    empty = torch.full((1, 4), nan)
    assert stat(empty, nothing).value is None
    assert peak(empty, nothing).value is None
    assert effective_size(empty, nothing).value is None
    assert (stat(empty, nothing) + Stat(3.0, 2)).value == 1.5
    assert (peak(empty, nothing) + Peak(-2.0)).value == -2.0


def test_effective_sample_size():
    weights = torch.tensor([[1, 2, 0.606531, 2]], dtype=torch.float64)
    assert effective_size(weights, ALL).num_effective == pytest.approx(3.355422, abs=1e-6)
    assert effective_size(weights, ALL).value == pytest.approx(3.355422 / 4, abs=1e-6)
    assert EffectiveSize(0.0, 0.0, 3).num_effective == 0


def some_tokens(make_tokens, rows=slice(None)):
    generator = torch.Generator().manual_seed(1)
    now, gap, drift, ref = (torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(4))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 0, 1]])
    return make_tokens(
        now[rows],
        old=(now - 0.3 * drift)[rows],
        sampler=(now - 0.3 * drift - 0.1 * gap)[rows],
        ref=ref[rows],
        entropy=ref[rows].abs(),
        mask=mask[rows],
        advantages=torch.tensor([1.0, -1.0, 2.0, -0.5])[rows].tolist(),
    )


def test_metrics_of_micro_batches_add_up_to_those_of_the_update(make_tokens):
    def measured(rows):
        return token_metrics(some_tokens(make_tokens, rows), clip, truncate)

    parts = [measured(slice(i, i + 1)) for i in range(4)]
    assert values(reduce(merge, parts)) == pytest.approx(values(measured(slice(None))))


def test_metrics_of_a_first_step_say_that_nothing_has_moved(make_tokens):
    now = torch.tensor([[-0.5, -2.0]], requires_grad=True)
    tokens = make_tokens(now, ref=now.detach(), entropy=[[0.5, 1.5]])
    assert values(token_metrics(tokens, clip, truncate)) == {
        "entropy": 1.0,
        "ratio/max": 1.0,
        "log_ratio_clamped": 0.0,
        "sampling/sampling_logp_difference/mean": 0.0,
        "sampling/sampling_logp_difference/max": 0.0,
        "sampling/importance_sampling_ratio/mean": 1.0,
        "sampling/importance_sampling_ratio/max": 1.0,
        "sampling/effective_share": 1.0,
        "clip_ratio/low_mean": 0.0,
        "clip_ratio/high_mean": 0.0,
        "clip_ratio/region_mean": 0.0,
        "kl": 0.0,
        "kl_k3": 0.0,
    }


def test_metrics_see_log_ratios_as_they_are(make_tokens):  # B28
    tokens = make_tokens([[0.0, 0.0]], old=[[30.0, 0.0]], ref=[[-30.0, 0.0]])
    measured = values(token_metrics(tokens, clip, truncate))
    assert measured["kl"] == 15.0
    assert measured["log_ratio_clamped"] == 0.5
    far = make_tokens([[-100.0]], ref=[[0.0]])
    assert values(token_metrics(far, clip, truncate))["kl_k3"] == pytest.approx(2.688117e43, rel=1e-6)


def test_noise_outside_the_mask_is_not_measured(make_tokens):
    noisy = make_tokens(
        [[-1.0, nan]], ref=[[-1.0, nan]], entropy=[[0.5, nan]], mask=[[1, 0]], sampler=[[-1.0, -torch.inf]]
    )
    clean = make_tokens([[-1.0]], ref=[[-1.0]], entropy=[[0.5]])
    assert token_metrics(noisy, gspo, truncate) == token_metrics(clean, gspo, truncate)


def test_an_objective_is_asked_as_training_asks_it_without_noise(make_tokens):
    def sum_of_row(tokens):
        return -(tokens.logprobs * tokens.mask).sum(dim=1, keepdim=True).expand_as(tokens.mask)

    tokens = make_tokens([[-1.0, nan]], mask=[[1, 0]])
    assert values(token_metrics(tokens, sum_of_row, truncate))["clip_ratio/region_mean"] == 0

    def squared(tokens):
        return (sum_of_row(tokens) - 1.0).square() / 2

    assert values(token_metrics(tokens, squared, truncate))["clip_ratio/region_mean"] == 1


def test_sampler_metrics_show_gap_and_applied_weight(make_tokens):
    zeros = torch.zeros(1, 4, dtype=torch.float64)
    tokens = make_tokens(zeros, sampler=-torch.tensor([[0, 0.7, -0.5, 1.2]], dtype=torch.float64))
    measured = values(token_metrics(tokens, clip, partial(truncate, cap=2.0)))
    assert measured["sampling/sampling_logp_difference/mean"] == pytest.approx(0.6)
    assert measured["sampling/sampling_logp_difference/max"] == pytest.approx(1.2)
    assert measured["sampling/importance_sampling_ratio/mean"] == pytest.approx(5.606531 / 4, abs=1e-6)
    assert measured["sampling/importance_sampling_ratio/max"] == 2.0
    assert measured["sampling/effective_share"] == pytest.approx(3.355422 / 4, abs=1e-6)


RATIOS = [0.50, 0.79, 1.00, 1.20, 1.25, 1.30, 5.00]


@pytest.mark.parametrize(
    ("advantage", "clipped"),
    [(1.0, [0, 0, 0, 0, 0, 1, 1]), (-1.0, [1, 1, 0, 0, 0, 0, 0]), (0.0, [0] * 7)],
)
def test_a_ratio_outside_the_range_is_clipped_only_on_the_side_of_its_advantage(
    make_tokens, advantage, clipped
):
    now = torch.tensor([RATIOS], dtype=torch.float64).log()
    tokens = make_tokens(now, old=torch.zeros_like(now), advantages=[advantage])
    objective = partial(clip, low=0.2, high=0.28)
    assert is_clipped(tokens, objective)[0].int().tolist() == clipped
    measured = values(token_metrics(tokens, objective, no_correction))
    assert measured["clip_ratio/high_mean"] == pytest.approx(sum(clipped) / 7 if advantage > 0 else 0)
    assert measured["clip_ratio/low_mean"] == pytest.approx(sum(clipped) / 7 if advantage < 0 else 0)
    assert measured["clip_ratio/region_mean"] == pytest.approx(sum(clipped) / 7)


def test_a_whole_sequence_is_clipped_by_gspo_and_no_token_by_cispo_or_reinforce(make_tokens):
    tokens = make_tokens([[3.0, -1.0], [0.0, 0.0]], old=[[0.0, 0.0], [0.0, 0.0]], mask=[[1, 1], [1, 0]])
    assert is_clipped(tokens, gspo).tolist() == [[True, True], [False, False]]
    assert not is_clipped(tokens, cispo).any()
    assert not is_clipped(tokens, reinforce).any()


@pytest.mark.parametrize("objective", OBJECTIVES.values())
def test_measuring_works_where_gradients_are_off_and_keeps_no_graph(make_tokens, objective):
    tokens = some_tokens(make_tokens)
    tokens.logprobs.requires_grad_()
    with torch.no_grad():
        without = values(token_metrics(tokens, objective, truncate))
    assert without == values(token_metrics(tokens, objective, truncate))
    assert tokens.logprobs.grad is None


def test_two_updates_on_the_same_rollouts_move_the_ratio(make_tokens):  # B25
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    old = logits.detach().log_softmax(0)[:1, None]

    def tokens():
        return make_tokens(logits.log_softmax(0)[:1, None], old=old)

    assert values(token_metrics(tokens(), clip, no_correction))["ratio/max"] == 1.0
    (gradient,) = torch.autograd.grad(clip(tokens()).sum(), logits)
    logits = (logits - gradient).detach().requires_grad_()
    second = values(token_metrics(tokens(), clip, no_correction))
    assert second["ratio/max"] == pytest.approx(1.728, abs=1e-3)
    assert second["clip_ratio/high_mean"] == 1.0
