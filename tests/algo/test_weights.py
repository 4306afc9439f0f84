import pytest
import torch

from muster.algo.tokens import Totals
from muster.algo.weights import WEIGHTS, by_limit, by_sequence, by_sum, by_token

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
TOTALS = Totals(tokens=6, sequences=2, limit=8)
LOSSES = torch.tensor([[1, 3, 99, 99], [2, 2, 2, 6]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("weigh", "value", "short", "long"),
    [
        (by_sequence, 2.5, 0.25, 0.125),
        (by_token, 2.666667, 1 / 6, 1 / 6),
        (by_limit, 1.0, 1 / 16, 1 / 16),
        (by_sum, 8.0, 1 / 2, 1 / 2),
    ],
)
def test_what_a_token_of_a_short_and_of_a_long_completion_counts(weigh, value, short, long):
    weights = weigh(MASK, TOTALS)
    assert (LOSSES * weights).sum().item() == pytest.approx(value, abs=1e-6)
    assert weights[0].tolist() == pytest.approx([short, short, 0, 0])
    assert weights[1].tolist() == pytest.approx([long] * 4)


@pytest.mark.parametrize(
    ("weigh", "value"), [(by_sequence, 0.0), (by_token, 0.333333), (by_limit, 0.125), (by_sum, 1.0)]
)
def test_the_loss_of_a_first_step_is_zero_only_for_sequence_means(weigh, value):
    per_token = -torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    assert (per_token * weigh(MASK, TOTALS)).sum().item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("weigh", WEIGHTS.values())
def test_micro_batches_weigh_tokens_as_the_whole_batch_does(weigh):
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]]).bool()
    totals = Totals(tokens=7, sequences=4, limit=3)
    parts = torch.cat([weigh(mask[:1], totals), weigh(mask[1:], totals)])
    assert torch.equal(parts, weigh(mask, totals))


@pytest.mark.parametrize("weigh", WEIGHTS.values())
def test_rows_and_updates_without_tokens_weigh_nothing(weigh):  # B12
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert torch.equal(weigh(nothing, Totals(tokens=0, sequences=0, limit=3)), torch.zeros(2, 3))
    half = torch.tensor([[1, 1, 0], [0, 0, 0]]).bool()
    assert weigh(half, Totals(tokens=2, sequences=1, limit=3))[1].sum() == 0


def test_a_row_that_was_left_out_leaves_numerator_and_denominator():
    # [2.0, 2.0] and a second row without a token that counts: verl's 2.0, not TRL's 1.0.
    mask = torch.tensor([[1, 1], [0, 0]]).bool()
    weights = by_sequence(mask, Totals(tokens=2, sequences=1, limit=2))
    assert (torch.full((2, 2), 2.0) * weights).sum() == 2.0
