import pytest
import torch

from muster.algo.advantages import zscore
from muster.algo.filters import has_signal, overlong_penalty


def test_a_group_has_signal_where_rewards_differ():
    rewards = torch.tensor([[0.1] * 8, [0.1] * 7 + [0.2], [torch.nan] * 7 + [3.0], [torch.nan] * 8])
    assert has_signal(zscore(rewards)).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0), (15, 0), (16, -0.2), (17, -0.4), (18, -0.6), (19, -0.8), (20, -1), (21, -1), (99, -1)],
)
def test_the_overlong_penalty_grows_through_the_zone(length, penalty):  # also B17
    assert overlong_penalty(torch.tensor([length]), limit=20, zone=5).item() == pytest.approx(penalty)
