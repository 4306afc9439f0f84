"""Ranks: processes that train one policy together, as torchrun, accelerate or Slurm start them.

Every rank makes every decision, from the same numbers; what is divided among them is sampling, grading,
and the forward and backward passes. So nothing that a step decides depends on how many ranks there are,
and what is sent is what was computed: completions with their scores, logprobs, and gradients.

With one process there is nothing to set up, to send or to wait for. torch is imported where there is
more than one.
"""

import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from muster.errors import ConfigError, EngineLostError, MusterError, RankError
from muster.launched import is_launched, local_rank, meeting, num_launched

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.distributed_c10d import Store

Result = TypeVar("Result")

_ALONE = ContextVar("alone", default=False)

MEETING = timedelta(minutes=10)
"""How long a rank waits for the others to start."""
PATIENCE = timedelta(days=1)
"""How long a rank waits for another that is alive; one that is gone is noticed at once."""

_FAILED = "failed"
_boards: list["Store"] = []
"""Where a rank that fails says why, before it closes its connections; of ranks that have met, one."""


@contextmanager
def joined() -> Generator[None]:
    """Meets the other ranks for as long as this lasts; nothing where there are none, or they have met."""
    if not is_launched() or _is_running():
        yield
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if torch.cuda.is_available():
        if local_rank() >= torch.cuda.device_count():
            raise ConfigError(
                f"this is process {local_rank()} of its machine, counted from 0 (LOCAL_RANK, SLURM_LOCALID), "
                f"and it sees {torch.cuda.device_count()} GPUs. Start as many processes a machine as it has "
                "GPUs, and let each see all of them: in Slurm --gpus-per-node instead of --gpus-per-task."
            )
        torch.cuda.set_device(local_rank())
    address = meeting()
    try:
        place, number, count = next(rendezvous(address, timeout=MEETING))
        # A launcher that starts ranks again gives them the store of those before, addresses and all.
        attempt = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", place)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=attempt,
            rank=number,
            world_size=count,
            timeout=PATIENCE,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{num_launched()} processes were started, and the ranks can't meet: {error}. Start them by one "
            "torchrun, accelerate launch or srun, or export RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; "
            "WORLD_SIZE=1 trains in one process."
        ) from error
    _boards.append(attempt)
    try:
        yield
    except Exception as error:
        _note_failure(error)
        raise
    finally:
        # Whoever still waits for this rank is told by the closed connection.
        _boards.clear()
        dist.destroy_process_group()


def rank() -> int:
    """Which of the processes this one is, counted from 0."""
    if not _is_running():
        return 0
    import torch.distributed as dist

    return dist.get_rank()


def is_first() -> bool:
    """Whether this is the rank that writes."""
    return rank() == 0


def world_size() -> int:
    """How many processes train together."""
    if not _is_running() or _ALONE.get():
        return 1
    import torch.distributed as dist

    return dist.get_world_size()


@contextmanager
def alone() -> Generator[None]:
    """For work that this rank does and no other: there are no other ranks in it."""
    before = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(before)


def _is_running() -> bool:
    # Nobody has met before torch was imported.
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def share(count: int) -> range:
    """The part of `count` things that is this rank's: neighbours, as many as any other has, or one more."""
    me, ranks = rank(), world_size()
    return range(count * me // ranks, count * (me + 1) // ranks)


def exchange(work: Callable[[], object], *, meets: bool = False) -> list[object]:
    """What the work gave on every rank, by rank; as JSON keeps it.

    Where it fails on one rank all of them raise: that one its own error, the others RankError, or
    EngineLostError where that is what it met, so that the run is saved as in one process. In work that
    `meets` the other ranks by itself, whoever fails raises at once: the others may be waiting for it there,
    and are told by the closed connection.
    """
    if world_size() == 1:
        return [work()]
    failure: Exception | None = None
    try:
        with _noticing_the_gone(in_work=True):
            sent = {"gave": work()}
    except Exception as error:
        if meets:
            raise
        is_lost = isinstance(error, EngineLostError)
        failure, sent = error, {"failed": f"{type(error).__name__}: {error}", "lost": is_lost}
    everyone = [json.loads(content) for content in _all_gather(json.dumps(sent).encode())]
    if failure is not None:
        raise failure
    for number, received in enumerate(everyone):
        if "failed" in received:
            kind = EngineLostError if received["lost"] else RankError
            raise kind(f"rank {number} failed: {received['failed']}")
    return [received["gave"] for received in everyone]


def together(work: Callable[[], Result], *, meets: bool = False) -> Result:
    """What the work gave here; every rank does it, and where it fails on one, all stop as in `exchange`."""
    held: list[Result] = []
    exchange(lambda: held.append(work()), meets=meets)
    return held[0]


def decided_by_first(work: Callable[[], object]) -> object:
    """What the work gave on rank 0, the only one to do it; as JSON keeps it."""
    if world_size() == 1:
        return work()
    content = together(lambda: json.dumps(work()).encode() if is_first() else b"")
    return json.loads(_sent_by_first(content))


def _sent_by_first(content: bytes) -> bytes:
    """The bytes of rank 0, which has some."""
    import torch
    import torch.distributed as dist

    with _noticing_the_gone():
        length = torch.tensor([len(content)])
        dist.broadcast(length, src=0)
        held = torch.zeros(int(length), dtype=torch.uint8)
        if is_first():
            held = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        dist.broadcast(held, src=0)
    return bytes(held.numpy())


def _all_gather(content: bytes) -> list[bytes]:
    """Every rank's bytes."""
    import torch
    import torch.distributed as dist

    with _noticing_the_gone():
        length = torch.tensor([len(content)])
        lengths = [torch.zeros_like(length) for _ in range(world_size())]
        dist.all_gather(lengths, length)
        width = max(int(number) for number in lengths)
        padded = torch.zeros(width, dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        received = [torch.empty_like(padded) for _ in range(world_size())]
        dist.all_gather(received, padded)
    return [bytes(part[: int(number)].numpy()) for part, number in zip(received, lengths, strict=True)]


def sum_over_ranks(values: "Tensor") -> "Tensor":
    """The sum of every rank's tensor, the same bits on each rank; on one process the tensor itself.

    The tensor that was passed in is left as it was. All ranks must call with one shape and dtype.
    """
    if world_size() == 1:
        return values
    import torch.distributed as dist

    total = values.detach().clone()
    with _noticing_the_gone():
        dist.all_reduce(total)
    return total


def add_gradients(params: Sequence["Tensor"]) -> None:
    """Each parameter's gradient becomes the sum of all ranks'; it stays None where no rank has one."""
    if world_size() == 1:
        return
    import torch
    import torch.distributed as dist

    has = sum_over_ranks(torch.tensor([param.grad is not None for param in params], dtype=torch.int32))
    with _noticing_the_gone():
        for param, count in zip(params, has.tolist(), strict=True):
            if count:
                if param.grad is None:
                    param.grad = torch.zeros_like(param)
                dist.all_reduce(param.grad)


@contextmanager
def _noticing_the_gone(*, in_work: bool = False) -> Generator[None]:
    """A rank that is gone closes its connections: RankError for those that wait for it.

    Around work only what the network says counts.
    """
    try:
        yield
    except RuntimeError as error:
        if in_work and (isinstance(error, MusterError) or not _is_of_the_network(error)):
            raise
        raise RankError(
            _noted_failure()
            or f"another rank is gone, so rank {rank()} stops: what it died of is in its own output "
            f"({str(error).partition(' This is typically')[0]})"
        ) from error


def _note_failure(error: Exception) -> None:
    """Says why this rank fails, unless it only follows another that did."""
    if not isinstance(error, RankError):
        # The one that keeps the board may be gone.
        with suppress(RuntimeError):
            _boards[0].set(_FAILED, f"rank {rank()} failed: {type(error).__name__}: {error}")


def _noted_failure() -> str | None:
    """What a rank that failed has said; None where none had the time to, or nobody keeps it any more."""
    try:
        return _boards[0].get(_FAILED).decode() if _boards and _boards[0].check([_FAILED]) else None
    except RuntimeError:
        return None


def _is_of_the_network(error: RuntimeError) -> bool:
    from torch.distributed import DistError

    # gloo has no error of its own; its messages name the place in its source.
    return isinstance(error, DistError) or "gloo/" in str(error)
