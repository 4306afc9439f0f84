"""Frozen weights multiplied by copies of them that oneDNN has laid out for itself.

A processor multiplies by such a copy a tenth to a quarter faster than by the weight as it lies. A weight
that is trained would have to be copied anew at every update; one that lies below an adapter is copied
once: as it is for the forward pass, transposed for the gradient of what went in.

Axes: N rows, I inputs, O outputs.
"""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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


@dataclass(kw_only=True)
class Switch:
    """Whether a model's frozen layers may keep copies: they take twice the memory of the weights."""

    is_on: bool = False


class FrozenProduct:
    """The product of a linear layer without bias, and its gradient; by copies where they are switched on."""

    def __init__(self, layer: nn.Module, switch: Switch) -> None:
        self.layer = layer
        self._switch = switch
        self._copied: tuple[int, int] | None = None
        self._forward: Tensor | None = None
        self._backward: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenProduct":
        # What is laid out can't be copied; the other makes its own.
        return FrozenProduct(deepcopy(self.layer, memo), deepcopy(self._switch, memo))

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
            return torch.mm(x, self.weight.t())
        if self._forward is None:
            self._forward = lay_out(self.weight)
        return multiply(x, self._forward)

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient of the input, [N I], from that of the output, [N O]."""
        if not self._may_copy():
            return torch.mm(grad, self.weight)
        if self._backward is None:
            self._backward = lay_out(self.weight.t())
        return multiply(grad, self._backward)

    def _may_copy(self) -> bool:
        """Whether copies may be used; those of a weight that has changed since are dropped."""
        weight = self.weight
        # The version counts changes in place, as when an adapter is merged.
        now = (weight.data_ptr(), weight._version)
        is_wanted = self._switch.is_on and not weight.requires_grad
        if not is_wanted or self._copied != now:
            self._forward = self._backward = None
            self._copied = now
        return is_wanted and weight.dtype == torch.float32 and weight.device.type == "cpu"
