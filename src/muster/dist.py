"""Sums over ranks; with one process there is nothing to add and nothing to set up.

torch.distributed counts as in use once the launcher's process group is initialised.
"""

import torch.distributed as dist
from torch import Tensor


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of every rank's tensor, the same bits on each rank; on one process the tensor itself.

    The tensor that was passed in is left as it was. All ranks must call with one shape and dtype.
    """
    if world_size() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total


def rank() -> int:
    """Which of the processes this one is, counted from 0."""
    return dist.get_rank() if _is_running() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if _is_running() else 1


def _is_running() -> bool:
    return dist.is_available() and dist.is_initialized()
