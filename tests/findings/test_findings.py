"""What groups say about a run: facts by hand, and for each finding groups that have it and some without."""

from dataclasses import replace

import pytest

from muster.findings import Setup, find, look
from muster.records import Completion, Group, Score
from toy_run import completion_of, group_of

MIXED = [1.0, 0.0, 0.0, 1.0]


def setup(**changes) -> Setup:
    return Setup(**{"group_size": 4, "max_tokens": 8, "weights": {"r": 1.0}, **changes})


def groups_of(*scores, lengths=(3, 5, 2, 4), truncated=()) -> list[Group]:
    return [
        group_of(
            values,
            completions=[
                completion_of(
                    [slot, *range(10 * index, 10 * index + length - 1)], truncated=index in truncated
                )
                for index, length in zip(range(len(values)), lengths, strict=False)
            ],
            slot=slot,
        )
        for slot, values in enumerate(scores)
    ]


def found(groups, **changes):
    weighed = setup(**changes)
    return {finding.name: finding for finding in find(look(groups, weighed), weighed)}


def test_pass_rates_and_signal_are_counted_by_prompt():
    seen = look(groups_of(MIXED, [0.0] * 4, [1.0] * 4, [0.5] * 4, [1.0, None, None, 0.5]), setup())
    assert seen.pass_rates == (0.5, 0, 1, 0, 0.5)
    assert seen.means == (0.5, 0, 1, 0.5, 0.75)
    assert (seen.num_judged, seen.num_equal, seen.num_right, seen.num_wrong) == (5, 3, 1, 1)
    assert (seen.num_scored, seen.num_rollouts, seen.full, seen.lowest) == (18, 20, 1, 0)


def test_the_full_score_is_the_top_level_or_one_or_the_best_seen():
    graded = {"levels": {"r": (0.0, 0.5, 2.0)}, "weights": {"r": -1.0}}
    assert setup(**graded).range == (-2.0, 0.0)
    assert look(groups_of([-2.0, -0.5]), setup(**graded)).full == 0
    assert look(groups_of([0.0, 0.4]), setup()).full == 1
    assert look(groups_of([-3.0, 0.4]), setup()).full == 0.4
    assert look(groups_of([-3.0, 0.4]), setup()).lowest == -3
    assert look(groups_of([2.0, 7.0]), setup()).full == 7


def test_a_reward_without_levels_beside_a_graded_one_leaves_the_range_open():
    two = setup(weights={"r": 1.0, "s": 1.0}, levels={"r": (0.0, 1.0)})
    assert two.range is None
    assert setup(weights={"r": 1.0, "s": 0.0}, levels={"r": (0.0, 1.0)}).range == (0, 1)


def test_the_limit_that_keeps_enough_is_known_only_where_few_are_cut():
    whole = look(groups_of(MIXED, MIXED), setup())
    assert (whole.lengths.needed, whole.lengths.is_known) == (5, True)
    cut = look(groups_of(MIXED, MIXED, truncated=(1,)), setup())
    assert (cut.lengths.truncated_share, cut.lengths.needed, cut.lengths.is_known) == (0.25, 8, False)


def test_groups_that_teach_have_no_finding():
    assert found(groups_of(*[MIXED] * 10)) == {}


@pytest.mark.parametrize(
    ("scores", "name", "says"),
    [
        ([0.0] * 4, "all wrong", "all 12 rollouts of 3 prompts got the same reward, 0"),
        ([1.0] * 4, "all right", "nothing is left to learn"),
        ([0.5] * 4, "constant reward", "equal rewards teach nothing"),
    ],
)
def test_a_run_whose_rewards_are_all_equal_would_not_learn(scores, name, says):
    result = found(groups_of(scores, scores, scores))
    assert list(result) == [name]
    assert result[name].blocks
    assert says in result[name].says
    # The rule of three, exactly: 1 - 0.05^(1/12).
    assert "95% confidence fewer than 22 %" in result[name].says


def test_rewards_that_differ_between_prompts_only_are_no_signal():
    result = found(groups_of([0.0] * 4, [1.0] * 4, [0.0] * 4))
    assert list(result) == ["no signal"]
    assert result["no signal"].blocks
    assert "1 all right, 2 all wrong" in result["no signal"].says


def test_a_larger_group_is_advised_with_what_it_is_expected_to_bring():
    result = found(groups_of(MIXED, MIXED, MIXED, *[[0.0] * 4] * 7))["few signals"]
    assert result.setting == "sampling.group_size"
    assert result.value in (8, 16, 32, 64)
    assert f"sampling.group_size = {result.value}: " in result.advice
    assert "7 of 10 groups have equal rewards, 0 all right, 7 all wrong" in result.says
    assert "easier prompts" in result.advice
    assert not result.blocks
    assert "harder prompts" in found(groups_of(MIXED, *[[1.0] * 4] * 9))["few signals"].advice


def test_few_groups_say_nothing_about_the_share_with_signal():
    assert found(groups_of(MIXED, [0.0] * 4, [0.0] * 4)) == {}


def test_truncation_is_a_finding_unless_it_is_meant():
    groups = groups_of(MIXED, MIXED, truncated=(0,))
    result = found(groups)["truncated"]
    assert (result.setting, result.value, result.blocks) == ("sampling.max_tokens", 16, False)
    assert "25 % of 8 completions were cut at 8 tokens" in result.says
    assert found(groups, has_fixed_length=True) == {}
    whole = groups_of(MIXED, MIXED, truncated=range(4))
    assert found(whole, leaves_out_truncated=True)["truncated"].blocks
    assert not found(whole)["truncated"].blocks


def played(turns: list[int], reply: int) -> Completion:
    """A rollout of turns of so many tokens that was cut, with replies of so many between them."""
    emitted = [own for turn in turns for own in (*[True] * turn, *[False] * reply)][: -reply or None]
    cut = completion_of(range(10, 10 + len(emitted)), truncated=True)
    return replace(cut, emitted=tuple(emitted))


@pytest.mark.parametrize(
    ("turns", "limit", "setting", "says"),
    [
        ([3, 5], None, "sampling.max_tokens", "100 % of 4 completions were cut at 8 tokens"),
        ([3, 4], 4, "data.environment", "were cut in a turn of 4 tokens, the environment's max_turn_tokens"),
        (
            [3, 2],
            4,
            "model.max_tokens",
            "where prompt, turns and what is between them reach model.max_tokens",
        ),
        ([3, 2], None, "model.max_tokens", "were cut where prompt, turns"),
    ],
)
def test_with_an_environment_the_limit_that_was_met_is_named(turns, limit, setting, says):
    groups = [group_of(MIXED, completions=[played(turns, reply=2)] * 4)]
    result = found(groups, max_turn_tokens=limit)["truncated"]
    assert says in result.says
    assert result.setting == setting
    assert (result.value is None) == (setting != "sampling.max_tokens")


def test_of_several_limits_the_one_that_most_completions_meet_is_named():
    cut = [played([3, 4], 2), played([2, 4], 2), played([3, 5], 2), played([1], 2)]
    weighed = setup(max_turn_tokens=4)
    seen = look([group_of(MIXED, completions=cut)], weighed)
    assert seen.lengths.cut_by == {"max_turn_tokens": 2, "sampling.max_tokens": 1, "model.max_tokens": 1}
    [result] = [finding for finding in find(seen, weighed) if finding.name == "truncated"]
    assert "100 % of 4 completions were cut, most of them in a turn of 4 tokens" in result.says


def test_failures_are_said_with_their_reason_and_block_above_the_share_that_stops_a_run():
    broken = Score(value=None, parts={"r": None}, failures={"r": "raised ValueError: no"})
    result = found(groups_of([broken, 1.0, 0.0, 1.0], MIXED))["failing reward"]
    assert "1 of 8 rollouts could not be scored; 1 times: r raised ValueError: no" in result.says
    assert not result.blocks
    assert found(groups_of([broken] * 4, MIXED), max_failed_share=0.4)["failing reward"].blocks


def test_rewards_that_never_judge_teach_nothing():
    assert found(groups_of([None] * 4))["no score"].blocks


def test_one_of_several_rewards_that_never_varies_is_named():
    def score(r):
        return Score(value=r + 0.5, parts={"r": r, "s": 0.5, "logged": 1.0})

    groups = groups_of(*[[score(value) for value in MIXED]] * 2)
    weights = {"r": 1.0, "s": 1.0, "logged": 0.0}
    result = found(groups, weights=weights)
    assert list(result) == ["constant part"]
    assert "s (0.5)" in result["constant part"].says
    assert "logged" not in result["constant part"].says


def test_completions_that_repeat_are_a_finding():
    same = [group_of(MIXED, completions=[completion_of([5, 6])] * 4, slot=slot) for slot in range(2)]
    assert found(same)["alike"].value == 1.0
    # Groups of one, as an evaluation has them, have nothing to repeat.
    assert found([group_of([1.0]), group_of([0.0], slot=1)]) == {}


def test_what_blocks_comes_first():
    names = list(found(groups_of([0.0] * 4, [0.0] * 4, truncated=(0, 1))))
    assert names == ["all wrong", "truncated"]
    broken = Score(value=None, parts={"r": None}, failures={"r": "raised ValueError: no"})
    names = list(found(groups_of([broken, 0.0, 0.0, 0.0], [0.0] * 4)))
    assert names == ["all wrong", "failing reward"]
