"""Kernels tried on a model as a run meets it, and its modules made to compute by those that are taken."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from muster.liger.parts import Kernels, Part, installed, parts_of, product_dtype
from muster.liger.pieces import Pieces, Trial
from muster.liger.trying import BOUNDS, said, tried

NUM_ELEMENTS = 2**22
"""Of what a kernel is given where it is timed."""


def fit(
    backbone: nn.Module,
    precision: Callable[[], AbstractContextManager[object]],
    *,
    device_type: str = "cuda",
    kernels: Kernels | None = None,
    num_elements: int = NUM_ELEMENTS,
) -> Pieces:
    """Tries kernels on the model's modules, which from now on compute by those that the result has `taken`.

    Nothing is tried or changed where the model is on another type of device, or where none are given or
    installed. The model is run, for one token, within `precision`.
    """
    if next(backbone.parameters()).device.type != device_type:
        return Pieces()
    try:
        found = kernels or installed()
    except Exception as error:  # whatever keeps a package from working on this machine
        return Pieces(failure=said(error))
    if found is None:
        return Pieces()
    with precision():
        met = _met(backbone, list(parts_of(backbone, found, BOUNDS)))
        names = dict.fromkeys(one.name for one in met)
        trials = {name: _tried(met, name, num_elements, found.version) for name in names}
    pieces = Pieces.chosen(found.version, trials)
    for part, *_ in met:
        part.module.forward = partial(part.forward, part.module.forward, part, pieces)
    return pieces


class _Met(NamedTuple):
    """A part that a pass over the model goes through, in a precision that has a bound."""

    part: Part
    given: Tensor
    """What its module is given for a token."""
    dtype: torch.dtype
    """In which the part computes."""
    name: str


def _met(backbone: nn.Module, parts: Sequence[Part]) -> list[_Met]:
    given: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        given.update(zip([module], args))

    hooks = [part.module.register_forward_pre_hook(note) for part in parts]
    try:
        with torch.no_grad():
            token = torch.zeros(1, 1, dtype=torch.long, device=next(backbone.parameters()).device)
            backbone(input_ids=token, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    met: list[_Met] = []
    for part in parts:
        if (hidden := given.get(part.module)) is not None:
            dtype = hidden.dtype if part.weight is not None else product_dtype(hidden)
            if name := part.names.get(dtype):
                met.append(_Met(part, hidden, dtype, name))
    return met


def _tried(met: Sequence[_Met], name: str, num_elements: int, version: str) -> Trial:
    """The trial of all parts of that name together."""
    same = [one for one in met if one.name == name]
    return tried([(one.part, one.given) for one in same], same[0].dtype, num_elements, version)
