"""What is remembered of prompts, and what they weigh in a draw: worked by hand."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from muster.history import FLOOR, HALF_LIFE, PRIOR, History, Tally, Visit, visits_of
from muster.records import Score
from toy_run import group_of

SOLVED, FAILED = [1.0] * 8, [0.0] * 8
HALF = [1.0, 0.0] * 4


def history(**groups: Sequence[float | None]) -> History:
    """After one step with a group per name."""
    return History().after(1, [Visit(name, scores) for name, scores in groups.items()])


def test_a_group_is_remembered_by_its_scores_and_their_spread():
    [tally] = history(a=[1.0, 0.0, 0.0, 0.0]).tallies.values()
    # The mean is 1/4: (3/4)^2 + 3 (1/4)^2 = 12/16, over 3 it is the unbiased variance 1/4.
    assert tally == Tally(1, scored=4, total=1, tried=3, spread=0.75, taught=3)
    assert tally.mean == 0.25
    assert tally.variance == 0.25


def test_half_a_life_later_a_group_counts_half():
    first = history(a=HALF)
    later = first.after(1 + HALF_LIFE, [Visit("a", SOLVED)])
    assert later.tallies["a"] == Tally(1 + HALF_LIFE, 12, 10, 10.5, 1, 3.5)
    assert first.tallies["a"].at(1 + HALF_LIFE) == Tally(1 + HALF_LIFE, 4, 2, 3.5, 1, 3.5)
    assert first.tallies["a"].total == 4, "the history before is as it was"


def test_the_variance_is_that_of_a_pass_rate_on_average():
    """All 16 groups of 4 at p = 3/10, by their probability: p (1 - p) = 21/100."""
    expected = 0.0
    for outcome in range(16):
        scores = [float(outcome >> bit & 1) for bit in range(4)]
        chance = math.prod(0.3 if score else 0.7 for score in scores)
        expected += chance * (history(a=scores).tallies["a"].variance or 0.0)
    assert expected == pytest.approx(0.21, abs=1e-12)


def test_rollouts_without_a_score_are_no_failures_to_solve_but_teach_nothing():
    some = history(a=[1.0, None, 0.0, None]).tallies["a"]
    assert some.mean == 0.5
    assert some.variance == pytest.approx(0.5 / 3)
    none = history(a=[None] * 4)
    assert none.tallies["a"].mean is None
    assert none.weights(["a"]) == pytest.approx([PRIOR / (PRIOR + 3)])


def test_the_raw_verdict_is_what_counts():
    failed = Score(value=None, failures={"r": "broken"})
    assert visits_of([group_of([1.0, None, failed, 0.0])]) == [Visit("0", [1.0, None, None, 0.0])]


def test_prompts_that_teach_weigh_more_than_those_that_do_not():
    seen = history(half=HALF, solved=SOLVED, failed=FAILED)
    # The only group that taught is the usual one: 2 squared distances in 7, so spread / v is 7.
    assert seen.weights(["half", "solved", "failed", "new"]) == pytest.approx(
        [1.0, PRIOR / (PRIOR + 7), PRIOR / (PRIOR + 7), 1.0]
    )
    rare = [1.0] + [0.0] * 7
    both = history(half=HALF, rare=rare)
    # Spreads 2 and 7/8 over 14: v = 23/112; against it they are 2 / v = 224/23 and 98/23.
    assert both.weights(["half", "rare"]) == pytest.approx(
        [(PRIOR + 224 / 23) / (PRIOR + 7), (PRIOR + 98 / 23) / (PRIOR + 7)]
    )


@pytest.mark.parametrize("scale", [1e-6, 5.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, -3.0])
def test_the_unit_of_the_reward_does_not_matter(scale: float, offset: float):
    plain = history(a=HALF, b=[1.0] + [0.0] * 7, c=FAILED)
    other = history(**{n: [offset + scale * s for s in g] for n, g in
                       {"a": HALF, "b": [1.0] + [0.0] * 7, "c": FAILED}.items()})  # fmt: skip
    assert other.weights(["a", "b", "c"]) == pytest.approx(plain.weights(["a", "b", "c"]), rel=1e-6)


def test_no_prompt_is_lost_for_good():
    seen = History()
    for step in range(1, 1001):
        seen = seen.after(step, [Visit("never", FAILED), Visit("half", HALF)])
    [never, half] = seen.weights(["never", "half"])
    assert never == FLOOR
    assert half == pytest.approx(1.0, rel=0.01)
    again = seen.after(1000 + 20 * HALF_LIFE, [Visit("half", HALF)])
    assert again.weights(["never"]) == pytest.approx([1.0], abs=0.01), "what is long ago is forgotten"


def test_a_run_without_any_signal_prefers_what_it_has_not_seen():
    seen = history(a=FAILED, b=FAILED)
    assert seen.weights(["a", "b", "new"]) == pytest.approx([PRIOR / (PRIOR + 7)] * 2 + [1.0])


@pytest.mark.parametrize("huge", [1e200, 1.7e308])
def test_absurd_scores_leave_every_number_finite(huge: float):
    seen = history(a=[huge, -huge, 0.0], b=[1.0, 0.0, 1.0], c=[5e-324, 0.0])
    assert np.isfinite(seen.weights(["a", "b", "c", "d"])).all()
    json.dumps(seen.to_plain(), allow_nan=False)


def test_equal_scores_have_no_spread_whatever_they_are():
    for score in (0.1, 1 / 3, 1e16 + 2, -0.7):
        assert history(a=[score] * 7).tallies["a"].variance == 0.0


def test_what_is_written_as_json_comes_back_to_the_last_bit():
    seen = history(a=[0.1, 0.2, None], b=[1 / 3, 0.7]).after(8, [Visit("a", [0.3, 1e-17])])
    again = History.from_plain(json.loads(json.dumps(seen.to_plain(), allow_nan=False)))
    assert again == seen
    assert list(again.tallies) == list(seen.tallies)


@pytest.mark.parametrize(
    "plain",
    [None, [], {}, {"step": "1", "tallies": {}}, {"step": 1, "tallies": {"a": [1, 2.0]}}, {"step": 1}],
    ids=str,
)
def test_what_is_no_history_is_refused(plain: object):
    with pytest.raises(ValueError, match=r"no step and tallies|is no tally"):
        History.from_plain(plain)


def test_expectations_are_of_prompts_seen_before():
    seen = history(a=HALF, b=SOLVED, c=[None] * 4)
    assert seen.expectations(["a", "b", "c", "new"]) == {
        "prompts/seen_share": 0.75,
        "prompts/expected_reward": 0.75,
    }
    assert History().expectations(["a"]) == {"prompts/seen_share": 0.0, "prompts/expected_reward": None}
