"""Tensors of which several safetensors files hold some rows each, and the index that says which.

    index.json    by kind and name, the shape of the whole and its pieces: a file, and the row of the whole
                  that its first one is

Files of this kind lie beside whole ones, `weights.safetensors`, and are read alike: all rows, or some.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

INDEX = "index.json"

Rows = Mapping[str, range]
"""By parameter, the rows of it that are asked for."""


class Piece(NamedTuple):
    """Some rows of a tensor, in a file."""

    file: str
    start: int
    """The row of the whole that the first of these is."""
    shape: tuple[int, ...]
    """Of the piece; empty for a scalar, which is never divided."""


Pieces = Mapping[str, Mapping[str, Sequence[Piece]]]
"""By kind and by the tensor's name, its pieces from the first row on."""


def rows_in(rows: Rows, key: str) -> range | None:
    """Which rows of a parameter, or of an optimizer's `parameter/entry`, are asked for; None for all."""
    return rows.get(key.partition("/")[0])


def index_of(parts: Iterable[Pieces]) -> Pieces:
    """The pieces of several writers as one index."""
    merged: dict[str, dict[str, list[Piece]]] = {}
    for part in parts:
        for kind, tensors in part.items():
            for name, pieces in tensors.items():
                merged.setdefault(kind, {}).setdefault(name, []).extend(pieces)
    for tensors in merged.values():
        for pieces in tensors.values():
            pieces.sort(key=lambda piece: piece.start)
    return merged


def to_plain(pieces: Pieces) -> dict[str, object]:
    """The pieces as JSON has them."""
    return {
        kind: {name: [piece._asdict() for piece in found] for name, found in tensors.items()}
        for kind, tensors in pieces.items()
    }


def from_plain(plain: Any) -> Pieces:
    """What `to_plain` gave; raises ValueError, KeyError, TypeError or AttributeError where it is none."""
    return {
        kind: {name: tuple(map(_piece, found)) for name, found in tensors.items()}
        for kind, tensors in plain.items()
    }


def _piece(plain: Any) -> Piece:
    file = plain["file"]
    if not isinstance(file, str) or Path(file).name != file or "\\" in file:
        raise ValueError(f"{INDEX} names {file!r}, which is no file beside it")
    return Piece(file, int(plain["start"]), tuple(map(int, plain["shape"])))


def read_index(folder: Path) -> Pieces:
    """The index of a folder; errors as of `from_plain`, and OSError."""
    return from_plain(json.loads((folder / INDEX).read_bytes()))


def files_of(pieces: Pieces) -> set[str]:
    """Every file that an index names."""
    return {piece.file for tensors in pieces.values() for found in tensors.values() for piece in found}


def pieces_in(folder: Path, kind: str) -> Mapping[str, Sequence[Piece]] | None:
    """The pieces of a kind's tensors, be each of one file; None where the folder holds none of that kind."""
    file = f"{kind}.safetensors"
    if not (folder / file).is_file():
        return read_index(folder).get(kind) if (folder / INDEX).is_file() else None
    with safe_open(folder / file, framework="pt") as opened:
        return {name: (Piece(file, 0, tuple(opened.get_slice(name).get_shape())),) for name in opened.keys()}  # noqa: SIM118 - no dict, and can't be iterated


def read(folder: Path, kind: str, rows: Rows | None, device: str) -> dict[str, Tensor] | None:
    """The tensors of a kind: those rows of each, or all; None where the folder holds none of that kind.

    Raises ValueError where rows are missing.
    """
    found = pieces_in(folder, kind)
    if found is None:
        return None
    with ExitStack() as stack:
        names = sorted(files_of({kind: found}))
        files = {
            name: stack.enter_context(safe_open(folder / name, framework="pt", device=device))
            for name in names
        }
        wanted = {name: None if rows is None else rows_in(rows, name) for name in found}
        return {name: _assembled(files, name, pieces, wanted[name]) for name, pieces in found.items()}


def _assembled(files: Mapping[str, Any], name: str, pieces: Sequence[Piece], rows: range | None) -> Tensor:
    """A tensor's wanted rows from its pieces; a scalar, and one that is not asked for by rows, whole."""
    first = pieces[0]
    if not first.shape or (rows is None and len(pieces) == 1):
        return files[first.file].get_tensor(name)
    rows = range(pieces[-1].start + pieces[-1].shape[0]) if rows is None else rows
    parts = [torch.empty((0, *first.shape[1:]))]
    for piece in pieces:
        low, high = max(rows.start, piece.start), min(rows.stop, piece.start + piece.shape[0])
        if low < high:
            parts.append(files[piece.file].get_slice(name)[low - piece.start : high - piece.start])
    # An empty one beside others would decide their dtype.
    whole = torch.cat(parts[1:]) if len(parts) > 1 else parts[0]
    if len(whole) != len(rows):
        raise ValueError(
            f"{name}: rows {rows.start} to {rows.stop} were asked for, and {len(whole)} are there"
        )
    return whole
