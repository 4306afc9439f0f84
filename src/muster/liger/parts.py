"""Parts of modules that liger-kernel's functions can compute: by their own code, by a kernel, and exactly.

Axes: N rows (whatever the leading axes are), E features.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module, metadata, util
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from muster.lean import SILU, Activation, activation_of, eps_of, gated, norm
from muster.liger.pieces import Pieces

Function = Callable[..., Tensor]


class Kernels(NamedTuple):
    """liger-kernel's functions, gradients included."""

    version: str
    norm: Callable[[Tensor, Tensor, float, float, str, bool], Tensor]
    """Of hidden states [... E], a weight [E], eps, what is added to the weight, the family that is rounded
    like, and whether the incoming gradient may be written over."""
    silu: Callable[[Tensor, Tensor], Tensor]
    """silu(gate) * up. The gradients are written over both, so they may be of no use to anybody else."""
    gelu: Callable[[Tensor, Tensor], Tensor]
    """The same with the tanh approximation of GELU."""


def installed() -> Kernels | None:
    """Those of the liger-kernel that is installed; None where none is. Its import may fail in any way."""
    if util.find_spec("liger_kernel") is None:
        return None
    ops = import_module("liger_kernel.ops")
    return Kernels(
        metadata.version("liger-kernel"),
        ops.LigerRMSNormFunction.apply,
        ops.LigerSiLUMulFunction.apply,
        ops.LigerGELUMulFunction.apply,
    )


class Part(NamedTuple):
    """What a kernel can compute of a module. Made of partials, so that a model's copy has its own."""

    module: Any
    size: int
    """E: features of what goes in."""
    names: Mapping[torch.dtype, str]
    """By precision, under what it is tried and taken: together with all of its kind and size."""
    labels: tuple[str, ...]
    """Of the result, and of the gradients of what goes in and of the weight."""
    own: Function
    """As the module computes it."""
    kernel: Function
    exact: Function
    """By `muster.lean`, of what goes in and the weight."""
    weight: nn.Parameter | None
    forward: Function
    """The module's new one, of its own forward, this part, the pieces that are taken, and hidden states."""


def parts_of(backbone: nn.Module, kernels: Kernels, dtypes: Mapping[torch.dtype, float]) -> Iterator[Part]:
    """The parts of the model's modules that there are kernels for, in these precisions."""

    def names(kind: str, size: int) -> dict[torch.dtype, str]:
        return {dtype: f"{kind} {size} {str(dtype).removeprefix('torch.')}" for dtype in dtypes}

    for one in backbone.modules():
        module: Any = one
        if type(module).__name__.endswith("RMSNorm") and (eps := eps_of(module)) is not None:
            yield _norm_part(module, eps, kernels, names("norm", module.weight.shape[0]))
        elif (activation := activation_of(module)) is not None:
            kernel = kernels.silu if activation is SILU else kernels.gelu
            yield _gated_part(module, activation, kernel, names("gated", module.gate_proj.out_features))


# Root mean square norm


def _norm_part(module: Any, eps: float, kernels: Kernels, names: Mapping[torch.dtype, str]) -> Part:
    offset = _offset(module, eps)
    return Part(
        module=module,
        size=module.weight.shape[0],
        names=names,
        labels=("result", "gradient of the input", "gradient of the weight"),
        own=module.forward,
        kernel=partial(_norm_by, kernels.norm, module, eps, offset),
        exact=partial(_exact_norm, eps, offset),
        weight=module.weight,
        forward=_norm_forward,
    )


def _offset(module: Any, eps: float) -> float:
    """What a norm adds to its weight, told by its result: Gemma stores how far the weight is from 1."""
    hidden = torch.linspace(-1.0, 1.0, module.weight.shape[0], device=module.weight.device)
    with torch.no_grad():
        result, weight = module.forward(hidden[None])[0].double(), module.weight.double()
        off = [float((norm(hidden.double(), weight + add, eps) - result).abs().max()) for add in (0.0, 1.0)]
    return float(off[1] < off[0])


def _norm_by(kernel: Function, module: Any, eps: float, offset: float, hidden: Tensor) -> Tensor:
    # Never in place: where a norm's result is added to the residual, that is given the same gradient.
    return kernel(hidden, module.weight, eps, offset, "gemma" if offset else "llama", False)


def _exact_norm(eps: float, offset: float, hidden: Tensor, weight: Tensor) -> Tensor:
    return norm(hidden, weight + offset, eps)


def _norm_forward(own: Function, part: Part, pieces: Pieces, hidden: Tensor) -> Tensor:
    return part.kernel(hidden) if part.names.get(hidden.dtype) in pieces.taken else own(hidden)


# Gated MLP: down(act(gate(x)) * up(x))


def _gated_part(
    module: Any, activation: Activation, kernel: Function, names: Mapping[torch.dtype, str]
) -> Part:
    return Part(
        module=module,
        size=module.gate_proj.out_features,
        names=names,
        labels=("result", "gradient of the gate", "gradient of what it gates"),
        own=partial(_own_gated, module),
        kernel=kernel,
        exact=partial(_exact_gated, activation),
        weight=None,
        forward=_mlp_forward,
    )


def _own_gated(module: Any, gate: Tensor, up: Tensor) -> Tensor:
    return module.act_fn(gate) * up


def _exact_gated(activation: Activation, gate: Tensor, up: Tensor) -> Tensor:
    return gated(gate, up, activation)


def _mlp_forward(own: Function, part: Part, pieces: Pieces, hidden: Tensor) -> Tensor:
    is_taken = part.names.get(product_dtype(hidden)) in pieces.taken
    return mlp_by(part, hidden) if is_taken else own(hidden)


def mlp_by(part: Part, hidden: Tensor) -> Tensor:
    """The MLP by the kernel, which alone is given what the first two products give."""
    return part.module.down_proj(part.kernel(part.module.gate_proj(hidden), part.module.up_proj(hidden)))


def product_dtype(hidden: Tensor) -> torch.dtype:
    """Of what a linear layer gives."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
