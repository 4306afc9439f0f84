"""The products of training by oneDNN, and frozen weights as copies that it has laid out for itself.

A processor multiplies by such a copy a tenth to a quarter faster than by the weight as it lies. A weight
that is trained changes at every update, so it is laid out anew for each product, which pays where that has
many rows; one that lies below an adapter is copied once: as it is for the forward pass, transposed for the
gradient of what went in.

Axes: N rows, I inputs, O outputs.
"""

from collections.abc import Generator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

MANY_ROWS = 800
"""From which on a product gains more than laying its weight out costs."""


@cache
def has_onednn() -> bool:
    """Whether this torch can lay weights out and multiply by them."""
    operations = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in operations
    )


def lay_out(weight: Tensor) -> Tensor:
    """A copy of a weight [O I] in a layout of oneDNN's own: good for `multiply` alone."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)


def multiply(x: Tensor, copy: Tensor, bias: Tensor | None = None) -> Tensor:
    """[... I] to [... O] by a weight that was laid out."""
    return torch.ops.mkldnn._linear_pointwise(x, copy, bias, "none", [], "")


def by_blas(x: Tensor, weight: Tensor) -> Tensor:
    """[N I] to [N O] by a weight [O I] as torch multiplies matrices."""
    return torch.mm(x, weight.t())


def by_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """The same in oneDNN. A weight that lies transposed, as in a gradient, is in an order that suits it."""
    if weight.stride(0) == 1:
        return multiply(x, weight)
    return multiply(x, lay_out(weight)) if len(x) >= MANY_ROWS else by_blas(x, weight)


@dataclass(kw_only=True)
class Ways:
    """How a model's linear layers compute in training."""

    copies_frozen: bool = False
    """Frozen layers may keep copies, which take twice the memory of the weights."""
    onednn: bool = False
    """Products of float32 on a CPU are oneDNN's instead of the BLAS library's."""

    adds_in_place: bool = field(default=False, init=False)
    """Gradients of weights are added to those that the weights have; see `summing`."""

    @contextmanager
    def summing(self, *, in_place: bool) -> Generator[None]:
        """Backward passes within sum the gradients of weights; `in_place` where no hook waits for one.

        A gradient is then added to the one that there is, instead of handed to autograd, which has it
        written to memory before it is added.
        """
        self.adds_in_place = in_place
        try:
            yield
        finally:
            self.adds_in_place = False

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """[N I] to [N O] by a weight [O I]."""
        suits = self.onednn and x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
        return by_onednn(x, weight) if suits else by_blas(x, weight)

    def of_weight(self, weight: Tensor, grads: Tensor, rows: Tensor) -> Tensor | None:
        """A weight's gradient [O I] from [N O] and [N I]; None where it was added to the one that it has."""
        if not self.adds_in_place or weight.grad is None:
            return torch.mm(grads.t(), rows)
        weight.grad.addmm_(grads.t(), rows)
        return None


class Product:
    """The product of a linear layer without bias, and its gradient; of a frozen one by copies if allowed."""

    def __init__(self, layer: nn.Module, ways: Ways) -> None:
        self.layer = layer
        self.ways = ways
        self._copied: tuple[int, int] | None = None
        self._forward: Tensor | None = None
        self._backward: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> "Product":
        # What is laid out can't be copied; the other makes its own.
        return Product(deepcopy(self.layer, memo), deepcopy(self.ways, memo))

    @property
    def weight(self) -> Tensor:
        """The layer's own, [O I]."""
        weight = self.layer.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def num_copies(self) -> int:
        """Copies that it holds: one once it went forward, two once it went backward."""
        return (self._forward is not None) + (self._backward is not None)

    def forward(self, x: Tensor) -> Tensor:
        """[N I] to [N O]."""
        if not self._may_copy():
            return self.ways.product(x, self.weight)
        if self._forward is None:
            self._forward = lay_out(self.weight)
        return multiply(x, self._forward)

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient of the input, [N I], from that of the output, [N O]."""
        if not self._may_copy():
            return self.ways.product(grad, self.weight.t())
        if self._backward is None:
            self._backward = lay_out(self.weight.t())
        return multiply(grad, self._backward)

    def _may_copy(self) -> bool:
        """Whether copies may be used; those of a weight that has changed since are dropped."""
        weight = self.weight
        # The version counts changes in place, as when an adapter is merged.
        now = (weight.data_ptr(), weight._version)
        is_wanted = self.ways.copies_frozen and not weight.requires_grad
        if not is_wanted or self._copied != now:
            self._forward = self._backward = None
            self._copied = now
        return is_wanted and weight.dtype == torch.float32 and weight.device.type == "cpu"
