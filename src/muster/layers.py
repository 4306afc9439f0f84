"""Linear layers, embeddings and low-rank adapters with their gradients written out.

Axes: N rows (whatever the leading axes are), E features in, O features out, r rank, V vocabulary.
"""

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from muster.frozen import Product, Ways

# Linear layers without bias: x W^T


def straight(product: Product, hidden: Tensor) -> Tensor:
    """[N E] to [N O]."""
    if product.weight.requires_grad:
        return cast(Tensor, _Trained.apply(hidden, product.weight, product.ways))
    return cast(Tensor, _Frozen.apply(hidden, product))


class _Trained(torch.autograd.Function):
    """With gradients of both."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ways: Ways) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.ways = ways
        out = ways.product(hidden.reshape(-1, hidden.shape[-1]), weight)
        return out.view(*hidden.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        hidden, weight = cast(tuple[Tensor, Tensor], ctx.saved_tensors)
        flat, grad = (x.reshape(-1, x.shape[-1]) for x in (hidden, grad))
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        return (
            ctx.ways.product(grad, weight.t()).view_as(hidden) if wants_hidden else None,
            ctx.ways.of_weight(weight, grad, flat) if wants_weight else None,
            None,
        )


class _Frozen(torch.autograd.Function):
    """With the gradient of x alone."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, product: Product) -> Tensor:
        ctx.product = product
        out = product.forward(hidden.reshape(-1, hidden.shape[-1]))
        return out.view(*hidden.shape[:-1], out.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, None]:
        of_hidden = ctx.product.backward(grad.reshape(-1, grad.shape[-1]))
        return of_hidden.view(*grad.shape[:-1], of_hidden.shape[-1]), None


# Embeddings


def embedded(module: nn.Module, ways: Ways, ids: Tensor) -> Tensor:
    """[N] ids to [N E]."""
    assert isinstance(module, nn.Embedding), type(module)
    if not module.weight.requires_grad:
        return F.embedding(ids, module.weight)
    return cast(Tensor, _Embedded.apply(ids, module.weight, module.padding_idx, ways))


class _Embedded(torch.autograd.Function):
    """Rows of the weight; that of the padding has no gradient."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None, ways: Ways) -> Tensor:
        ctx.save_for_backward(ids, weight)
        ctx.padding, ctx.ways = -1 if padding is None else padding, ways
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[None, Tensor | None, None, None]:
        ids, weight = cast(tuple[Tensor, Tensor], ctx.saved_tensors)
        if not ctx.ways.adds_in_place or weight.grad is None:
            of_weight = torch.ops.aten.embedding_dense_backward(grad, ids, len(weight), ctx.padding, False)
            return None, of_weight, None, None
        flat = ids.reshape(-1)
        counts = flat != ctx.padding
        weight.grad.index_add_(0, flat[counts], grad.reshape(len(flat), -1)[counts])
        return None, None, None, None


# Low-rank adapters (arXiv:2106.09685): x W^T + s (x A^T) B^T


class Adapter(NamedTuple):
    """The plain adapter of a layer."""

    layer: Any
    name: str
    base: Product
    """Of the layer below."""


def adapter_of(module: LoraLinear, ways: Ways) -> Adapter | None:
    """The one plain adapter of a layer without bias; None where there is more to it."""
    layer: Any = module
    names = list(module.active_adapters)
    if len(names) != 1 or list(layer.lora_A) != names or type(module.get_base_layer()) is not nn.Linear:
        return None
    [name] = names
    is_plain = (
        isinstance(layer.lora_dropout[name], nn.Identity)
        and layer.get_base_layer().bias is None
        and layer.lora_A[name].bias is None
        and layer.lora_B[name].bias is None
        and not getattr(layer, "lora_variant", {}).get(name)
    )
    return Adapter(layer, name, Product(layer.get_base_layer(), ways)) if is_plain else None


def adapted(adapter: Adapter, hidden: Tensor) -> Tensor:
    """[N E] to [N O], by the layer below and the adapter."""
    layer, name, base = adapter
    down, up = layer.lora_A[name].weight, layer.lora_B[name].weight
    # A fresh adapter adds nothing, and it is the reference of every run that starts with one.
    is_idle = not torch.is_grad_enabled() and not bool(up.any())
    if layer.disable_adapters or layer.merged or is_idle:
        return straight(base, hidden)
    return cast(Tensor, _Adapted.apply(hidden, base.weight, down, up, float(layer.scaling[name]), base))


class _Adapted(torch.autograd.Function):
    """The frozen layer's product with the adapter's added to it in place."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        base: Tensor,
        down: Tensor,
        up: Tensor,
        scale: float,
        product: Product,
    ) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        narrow = flat @ down.t()
        ctx.save_for_backward(hidden, narrow, down, up)
        ctx.scale, ctx.product = scale, product
        out = product.forward(flat).addmm_(narrow, up.t(), alpha=scale)
        return out.view(*hidden.shape[:-1], out.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, narrow, down, up = cast(tuple[Tensor, ...], ctx.saved_tensors)
        flat, grad = hidden.reshape(-1, hidden.shape[-1]), grad.reshape(-1, grad.shape[-1])
        wants_hidden, wants_base, wants_down, wants_up = ctx.needs_input_grad[:4]
        of_narrow = (grad @ up).mul_(ctx.scale)
        return (
            ctx.product.backward(grad).addmm_(of_narrow, down).view_as(hidden) if wants_hidden else None,
            grad.t() @ flat if wants_base else None,
            of_narrow.t() @ flat if wants_down else None,
            (grad.t() @ narrow).mul_(ctx.scale) if wants_up else None,
            None,
            None,
        )
