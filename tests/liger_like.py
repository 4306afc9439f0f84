"""Stands in for `liger_kernel.ops`: functions of its names and signatures in plain torch, and a package.

As liger-kernel's own do, those of gated MLPs write their gradients over what they were given.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

VERSION = "0.0.7"


class LigerRMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, W, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None):
        assert casting_mode == ("gemma" if offset else "llama")
        wide = X.float()
        scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(X, W, scale)
        ctx.offset, ctx.in_place = offset, in_place
        return (wide * scale * (W.float() + offset)).to(X.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        [dY] = grad_outputs
        X, W, scale = ctx.saved_tensors
        normed = X.float() * scale
        inner = dY.float() * (W.float() + ctx.offset)
        dX = (scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))).to(X.dtype)
        dW = (dY.float() * normed).flatten(0, -2).sum(0).to(W.dtype)
        return (dY.copy_(dX) if ctx.in_place else dX), dW, None, None, None, None, None


class LigerSiLUMulFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        [dc] = grad_outputs
        a, b = ctx.saved_tensors
        half = torch.sigmoid(a)
        of_a = dc * b * half * (1 + a * (1 - half))
        of_b = dc * a * half
        return a.copy_(of_a), b.copy_(of_b)


class LigerGELUMulFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return F.gelu(a, approximate="tanh") * b

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        [dc] = grad_outputs
        a, b = ctx.saved_tensors
        with torch.enable_grad():
            leaf = a.detach().requires_grad_()
            opened = F.gelu(leaf, approximate="tanh")
        [of_a] = torch.autograd.grad(opened, leaf, dc * b)
        return a.copy_(of_a), b.copy_(dc * opened.detach())


def write_package(folder: Path, source: str | None = None) -> None:
    """A package `liger_kernel` in the folder, as pip would have installed it; by default of this module."""
    package, about = folder / "liger_kernel", folder / f"liger_kernel-{VERSION}.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text(Path(__file__).read_text() if source is None else source)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: liger-kernel\nVersion: {VERSION}\n")
