"""A checkpoint that ranks write together: each its rows of every tensor, and rank 0 what holds them together.

checkpoints/000050/
  weights-00001-of-00002.safetensors     the rows that a rank holds; so for optimizer and old
  index.json                             which rows of which tensor lie in which file
  state.json, manifest.json              as in a checkpoint that one process writes
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file
from torch import Tensor

from muster import checkpoint
from muster.checkpoint import DIVIDED, Checkpoint
from muster.dist import exchange, is_first, rank, world_size
from muster.errors import DiskFullError
from muster.files import need_room, publish_by, staged, write_atomic
from muster.slices import INDEX, Piece, Rows, from_plain, index_of, rows_in, to_plain


def save_divided(folder: Path, step: int, part: Checkpoint, rows: Rows) -> Path:
    """Writes `folder/000050`, which appears whole or not at all; every rank calls, with what it holds.

    Where the disk has no room for what one of them writes, all raise DiskFullError. What else fails on one
    of them is its own error, and a RankError on the others.
    """
    final = folder / f"{step:06d}"
    sizes = cast(list[int], _agreed(lambda: checkpoint.num_bytes(part)))
    with ExitStack() as stack:
        begun = _agreed(lambda: str(_begin(stack, final, sum(sizes))) if is_first() else None)
        staging = Path(str(begun[0]))
        written = _agreed(lambda: _write_part(staging, part, rows))
        _agreed(lambda: _finish(stack, staging, step, part, written) if is_first() else None)
    return final


def _agreed(work: Callable[[], object]) -> list[object]:
    """What the work gave on every rank; a disk that is full for one is full for all."""

    def sent() -> object:
        try:
            return {"gave": work()}
        except DiskFullError as error:
            return {"full": str(error)}

    received = cast(list[dict[str, Any]], exchange(sent))
    for found in received:
        if "full" in found:
            raise DiskFullError(found["full"])
    return [found["gave"] for found in received]


def _begin(stack: ExitStack, final: Path, needed: int) -> Path:
    """The folder that all ranks write into; whatever becomes of them, it is published whole or removed."""
    need_room(final, needed)
    return stack.enter_context(staged(final))


def _write_part(staging: Path, part: Checkpoint, rows: Rows) -> dict[str, object]:
    """Writes this rank's files, on disk when it returns: their fingerprints, and which rows they hold."""
    checkpoint.refuse_non_finite(part)
    files: dict[str, object] = {}
    pieces: dict[str, dict[str, list[Piece]]] = {}
    for kind, tensors in checkpoint.tensors_of(part).items():
        file = f"{kind}-{rank() + 1:05d}-of-{world_size():05d}.safetensors"
        own = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items() if _is_mine(tensor)}
        if own:
            path = staging / file
            publish_by(partial(save_file, own), path, checkpoint.tensor_bytes(own))
            files[file] = checkpoint.fingerprint(path)
        pieces[kind] = {key: [_piece(file, key, tensor, rows)] for key, tensor in own.items()}
    return {"files": files, "pieces": to_plain(pieces)}


def _is_mine(tensor: Tensor) -> bool:
    """Rows go with their rank; a number that all have alike, such as a count of steps, with rank 0."""
    return tensor.numel() > 0 if tensor.ndim else is_first()


def _piece(file: str, key: str, tensor: Tensor, rows: Rows) -> Piece:
    held = rows_in(rows, key) if tensor.ndim else None
    return Piece(file, held.start if held is not None else 0, tuple(tensor.shape))


def _finish(stack: ExitStack, staging: Path, step: int, part: Checkpoint, written: list[object]) -> None:
    """Writes the rest, the manifest last, and publishes the folder."""
    parts = cast(list[dict[str, Any]], written)
    index = index_of(from_plain(found["pieces"]) for found in parts)
    write_atomic(staging / INDEX, json.dumps(to_plain(index)).encode())
    files = {name: found for each in parts for name, found in each["files"].items()}
    files[INDEX] = checkpoint.fingerprint(staging / INDEX)
    checkpoint.seal(staging, step, part, files, DIVIDED)
    stack.close()
