"""Sums over ranks; run as a program, this file is one rank of the two that a test starts."""

import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed

from muster import dist


def test_one_process_has_nothing_to_add():
    values = torch.tensor([1.0, 2.0])
    assert dist.sum_over_ranks(values) is values
    assert (dist.rank(), dist.world_size()) == (0, 1)


def test_two_processes_get_the_same_sum_and_keep_their_own(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=120)[0].split() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    # rank, world size, what it holds afterwards, the sum
    assert [float(word) for word in outputs[0]] == [0, 2, 1, 10, 3, 30]
    assert [float(word) for word in outputs[1]] == [1, 2, 2, 20, 3, 30]


def be_a_rank(rank: int, meeting: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=2)
    mine = torch.tensor([1.0, 10.0]) * (rank + 1)
    total = dist.sum_over_ranks(mine)
    print(dist.rank(), dist.world_size(), *mine.tolist(), *total.tolist())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    be_a_rank(int(sys.argv[1]), Path(sys.argv[2]))
