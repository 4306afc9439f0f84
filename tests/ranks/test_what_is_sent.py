"""What ranks send each other comes back as it was."""

import math

import pytest
import torch

from muster import dist
from muster.algo.metrics import EffectiveSize, Peak, Stat, from_plain, merge, to_plain
from muster.batch import Row, collate, rows_of_share
from muster.launched import is_launched
from muster.records import Completion, Rollout, Score
from muster.rewards import Logged
from muster.rewards.pool.wire import as_rollout, dump_rollout, dumps, loads


def test_a_rollout_comes_back_to_the_last_bit():
    rollout = Rollout(
        completion=Completion(
            ids=(3, 5),
            sampler_logprobs=(-0.1234567890123456, -math.inf),
            finish_reason="length",
            version=7,
            kept=((3, 4), (5,)),
        ),
        text='a "b"\n\u2028',
        score=Score(value=None, parts={"r": 0.5, "s": None}, failures={"s": "raised ValueError"}),
    )
    assert as_rollout(loads(dumps(dump_rollout(rollout)))) == rollout


def test_metrics_of_two_ranks_are_those_of_both():
    first = {"a": Stat(2.5, 3), "b": Peak(-torch.inf), "c": EffectiveSize(2.0, 4.0, 3)}
    second = {"a": Stat(0.5, 1), "b": Peak(4.0), "d": Stat(0.0, 0)}
    assert from_plain(to_plain(first)) == first
    both = merge(first, from_plain(to_plain(second)))
    assert both == {"a": Stat(3.0, 4), "b": Peak(4.0), "c": EffectiveSize(2.0, 4.0, 3), "d": Stat(0.0, 0)}


def test_what_was_noted_on_ranks_stands_in_the_order_of_the_ranks():
    logged = Logged(metrics={"m": [1.0]}, extras={"e": ["x"]})
    logged.add(Logged(metrics={"m": [2.0], "n": [3.0]}, extras={"e": ["y"]}))
    assert logged == Logged(metrics={"m": [1.0, 2.0], "n": [3.0]}, extras={"e": ["x", "y"]})
    logged.clear()
    assert logged == Logged()


@pytest.mark.parametrize(
    ("lengths", "count", "expected"),
    [
        ([4, 4, 4, 4], 2, [[0, 1], [2, 3]]),
        ([9, 1, 1, 1], 2, [[0], [1, 2, 3]]),
        ([1, 1, 1, 9], 2, [[0, 1, 2], [3]]),
        ([5], 3, [[], [0], []]),
        ([0, 0], 2, [[0, 1], []]),
        ([], 2, [[], []]),
    ],
)
def test_rows_are_shared_by_their_tokens(lengths: list[int], count: int, expected: list[list[int]]):
    completions = [
        Completion(ids=(1,) * n, sampler_logprobs=(-1.0,) * n, finish_reason="stop", version=0)
        for n in lengths
    ]
    batch = collate([(1, 2)], [Row(0, completion, 1.0) for completion in completions])
    assert [rows_of_share(batch, number, count) for number in range(count)] == expected


def test_one_process_sends_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    odd = object()
    with dist.joined():
        assert dist.exchange(lambda: odd) == [odd]
        assert dist.together(lambda: odd) is odd
        assert dist.decided_by_first(lambda: odd) is odd
        assert dist.share(5) == range(5)
        assert dist.is_first()


def test_a_world_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ValueError, match="WORLD_SIZE is 'two' instead of a whole number"):
        is_launched()
