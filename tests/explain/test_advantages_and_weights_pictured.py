"""The pictures of advantages and weights hold the numbers of MATH's tables; odd input is refused by name."""

import pytest

from muster.errors import ConfigError
from muster.explain.advantages import explain_advantages, parse_groups
from muster.explain.weights import explain_weights
from muster.pictures import Chart, Table
from pictured import numbers_of


def test_advantages_are_those_worked_by_hand():
    numbers = numbers_of(explain_advantages(["1,0,0,0", "0.1,0.5,0.9,0.5"]))["advantages"]
    assert numbers["zscore"][0] == pytest.approx([1.4997, -0.4999, -0.4999, -0.4999], abs=1e-6)
    assert numbers["zscore"][1] == pytest.approx([-1.224370, 0, 1.224370, 0], abs=1e-6)
    assert numbers["center"][0] == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert numbers["leave_one_out"][1] == pytest.approx([-0.533333, 0, 0.533333, 0], abs=1e-6)


def test_epsilon_is_an_option():
    numbers = numbers_of(explain_advantages(["1,0,0,0"], 1e-6))["advantages"]
    assert numbers["zscore"][0][:2] == pytest.approx([1.499997, -0.499999], abs=1e-6)


def test_a_batch_deviation_is_over_all_groups():
    numbers = numbers_of(explain_advantages(["1,0", "1,1"]))["advantages"]
    assert numbers["batch_whitened"] == [pytest.approx([1.224745, -1.224745], abs=1e-6), [0, 0]]


def test_equal_rewards_have_advantage_zero_and_the_picture_says_so():
    picture = explain_advantages(["1,1,1", "1,0,-"])
    assert numbers_of(picture)["has_signal"] == [False, True]
    assert all(values[0] == [0, 0, 0] for values in numbers_of(picture)["advantages"].values())
    assert any(isinstance(block, str) and "Group 1 teaches nothing" in block for block in picture.blocks)
    assert numbers_of(picture)["advantages"]["center"][1] == [0.5, -0.5, 0]


def test_two_rewards_are_combined_both_ways():
    found = numbers_of(explain_advantages(["1,0,1,0"], second=["0.1,0.1,0.2,0.2"]))["combined"]
    summed = [0.775421, -0.947737, 0.947737, -0.775421]
    assert found["sum_then_normalize"] == [pytest.approx(summed, abs=1e-6)]
    apart = [0.000954, -1.224658, 1.224658, -0.000954]
    assert found["normalize_then_sum"] == [pytest.approx(apart, abs=1e-6)]
    with pytest.raises(
        ConfigError, match="--second has 1 groups of up to 2 rollouts, --rewards 1 of up to 3"
    ):
        explain_advantages(["1,0,1"], second=["1,0"])


def test_the_chance_of_no_signal_is_drawn():
    chart = next(
        b for b in explain_advantages().blocks if isinstance(b, Chart) and b.title.startswith("chance")
    )
    halfway = {curve.name: curve.y[25] for curve in chart.curves}
    assert halfway["group of 2"] == pytest.approx(0.5)
    assert halfway["group of 8"] == pytest.approx(0.0078125)


@pytest.mark.parametrize("text", ["1,nan", "1,x,0", "1,,0", "1,inf"])
def test_rewards_that_cannot_be_read_are_refused(text):
    with pytest.raises(ConfigError, match="which is no finite number"):
        explain_advantages([text])


def test_a_group_of_one_is_refused():
    with pytest.raises(ConfigError, match="has 1 rollouts"):
        parse_groups(["1,0", "1"])
    with pytest.raises(ConfigError, match="--eps is -1"):
        explain_advantages(["1,0"], -1.0)


def test_weights_of_two_completions_are_those_worked_by_hand():
    numbers = numbers_of(explain_weights([2, 4], 8))
    expected = {
        "by_sequence": [0.25, 0.125],
        "by_token": [1 / 6, 1 / 6],
        "by_limit": [1 / 16, 1 / 16],
        "by_sum": [0.5, 0.5],
    }
    assert {name: pytest.approx(values) for name, values in expected.items()} == numbers["token"]
    assert numbers["share"]["by_sequence"] == pytest.approx([0.5, 0.5])
    assert numbers["share"]["by_token"] == pytest.approx([1 / 3, 2 / 3])
    assert numbers["sum"] == pytest.approx({"by_sequence": 1, "by_token": 1, "by_limit": 6 / 16, "by_sum": 3})


def test_tables_show_what_the_numbers_say():
    picture = explain_weights([2, 4], 8)
    table = next(block for block in picture.blocks if isinstance(block, Table))
    assert table.columns == ("weights", "2 tokens", "4 tokens", "all weights together")
    assert table.rows[0] == ("by_sequence", 0.25, 0.125, 1.0)


@pytest.mark.parametrize(
    ("lengths", "limit", "says"),
    [([], 8, "--lengths is"), ([0, 2], 8, "--lengths is '0,2'"), ([9], 8, "--limit is 8, below")],
)
def test_lengths_that_make_no_sense_are_refused(lengths, limit, says):
    with pytest.raises(ConfigError, match=says):
        explain_weights(lengths, limit)
