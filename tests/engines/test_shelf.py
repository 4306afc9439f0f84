"""Weights on their way to servers, on a disk that has no room for them."""

import errno
from pathlib import Path

import pytest
from safetensors.torch import load_file

from muster.engines.shelf import Load, Shelf
from muster.errors import DiskFullError
from muster.files import Operation, watched
from tiny import tiny_policy

REMEDY = (
    r"Free some space there\. vLLM is given new weights there; engine\.options\.share names another folder\.$"
)


def test_a_disk_that_is_full_is_said_with_bytes_and_what_to_do_and_holds_whole_weights_alone(
    small_disk: Path,
):
    policy, shelf = tiny_policy(), Shelf(str(small_disk))
    weights = policy.snapshot()
    held: list[Load] = []

    def fill() -> None:
        for version in range(99):
            held.append(shelf.put(policy, weights, version))

    bytes_told = r"needs [\d,]+ bytes and [\d,]+ bytes are free\. "
    with pytest.raises(DiskFullError, match=bytes_told + REMEDY) as caught:
        fill()
    assert str(small_disk) in str(caught.value)
    [place] = small_disk.iterdir()
    assert sorted(place.iterdir()) == sorted(load.folder for load in held)
    assert shelf.load == held[-1]
    for load in held:
        assert load_file(load.folder / "model.safetensors").keys() == weights.keys()
    shelf.drop(held[0])
    shelf.drop(held[1])
    assert shelf.put(policy, weights, 99).folder.is_dir()


@pytest.mark.parametrize("name", [".partial", "head.safetensors"])
def test_a_disk_that_fills_up_meanwhile_leaves_nothing_behind(tmp_path: Path, name: str):
    policy, shelf = tiny_policy(), Shelf(str(tmp_path))  # its head is its embedding, and written beside it
    before = shelf.put(policy, policy.snapshot(), 0)

    def full(operation: Operation) -> None:
        if operation.kind == "write" and operation.path.name.endswith(name):
            raise OSError(errno.ENOSPC, "no space")

    with watched(full), pytest.raises(DiskFullError, match=REMEDY):
        shelf.put(policy, policy.snapshot(), 1)
    assert list(before.folder.parent.iterdir()) == [before.folder]
    assert shelf.load == before
    assert shelf.put(policy, policy.snapshot(), 1).folder.is_dir()
