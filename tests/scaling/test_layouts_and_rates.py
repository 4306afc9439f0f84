"""What is written on the command line: layouts and assumptions."""

import pytest

from muster.errors import ConfigError
from muster.scaling import Layout, read_layouts, read_rates


def test_layouts_are_read_as_they_are_written():
    read = read_layouts("1, 8,4x8+2,16+4")
    assert read == (Layout(1, 1), Layout(1, 8), Layout(4, 8, 2), Layout(1, 16, 4))
    assert [str(layout) for layout in read] == ["1", "8", "4x8+2", "16+4"]
    assert (read[2].ranks, read[2].total) == (32, 34)


@pytest.mark.parametrize("text", ["", "0", "4x", "x8", "0x8", "4x0", "-1", "1,", "8+", "4 x 8", "２"])
def test_a_layout_that_is_none_is_refused_with_what_is_allowed(text: str):
    with pytest.raises(ConfigError, match=r"nodes x devices of each \(4x8\)"):
        read_layouts(text)


def test_assumptions_start_from_the_precision_and_the_limit_and_say_where_they_come_from():
    rates, listed = read_rates(
        ["network=25e9", "completion=40"],
        compute="bfloat16",
        limit=64,
        measured={"memory": 8e9, "longest": 60},
    )
    assert (rates.flops, rates.network, rates.completion, rates.longest, rates.memory) == (
        989e12, 25e9, 40, 60, 8e9,
    )  # fmt: skip
    assert read_rates([], compute="float32", limit=64)[0].flops == 67e12
    sources = {item.name: item.source for item in listed}
    assert sources["network"] == sources["completion"] == "given"
    assert sources["memory"] == sources["longest"] == "measured"
    assert sources["flops"] == "assumed"
    assert all(item.unit and item.about for item in listed)


@pytest.mark.parametrize(
    "text", ["network", "network=", "network=0", "network=-1", "network=inf", "network=fast"]
)
def test_an_assumption_that_is_no_number_above_0_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"--assume network is '.*'; allowed: a number above 0"):
        read_rates([text], compute="float32", limit=8)


def test_an_unknown_assumption_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'network'"):
        read_rates(["netwrk=1"], compute="float32", limit=8)
