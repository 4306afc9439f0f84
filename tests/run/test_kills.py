"""A sample of `make torture`: runs killed, cut off from power, and taken up again to the same bytes."""

import pytest

from killing import Torture, make_place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("place"))


def test_a_killed_run_resumes_to_the_bytes_of_one_that_was_not(place, tmp_path):  # P1, P4, B52 - B54
    case = Torture(place, tmp_path, "all weights")
    assert case.num_operations > 150
    case.survive({"after_s": 0.5 * case.seconds})
    case.survive({"at": 6})  # before the folder says what run it is
    case.survive({"at": case.num_operations // 2}, {"at": 9})  # and again while it is taken up
    case.survive({"at": 2 * case.num_operations // 3, "power": 1})
    case.survive({"at": case.num_operations - 3})  # while the model is exported
    assert case.count.kills >= 6
    assert case.count.num_bytes > 5_000_000
    assert case.count.differences == []


@pytest.mark.parametrize("variant", ["adapter", "by signal", "ahead"])
def test_runs_of_other_kinds_survive_a_kill_too(place, tmp_path, variant):  # P1
    case = Torture(place, tmp_path, variant)
    case.survive({"at": 3 * case.num_operations // 5})
    assert case.count.kills == 1
    assert case.count.differences == []
