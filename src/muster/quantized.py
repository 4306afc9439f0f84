"""Linear layers whose frozen weights are kept in 4 or 8 bits, for adapters to be trained on (QLoRA).

Weights are quantised by bitsandbytes and computed with in full: each product takes them apart again, in
the forward pass and in the backward, and the result is a function of its row alone. So sampler and
trainer, packed rows and padded ones compute the same policy, as they do without quantisation.

Axes: O outputs, I inputs.
"""

import hashlib
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from muster.errors import ConfigError


def require_bitsandbytes(setting: str) -> ModuleType:
    """bitsandbytes; raises ConfigError with the extra to install, naming the setting that needs it."""
    try:
        return import_module("bitsandbytes")
    except ImportError as error:
        raise ConfigError(
            f"{setting} needs bitsandbytes, which can't be imported ({error}). "
            "Run: pip install 'muster-rl[quant]'"
        ) from error


class Stored(Protocol):
    """A weight in fewer bits."""

    def whole(self) -> Tensor:
        """[O I] in float32."""
        ...

    def parts(self) -> list[Tensor]:
        """All the tensors that make it up."""
        ...


class Nf4(NamedTuple):
    """4-bit normal floats in blocks of 64, their scales in 8 bits (QLoRA, arXiv:2305.14314)."""

    codes: Tensor
    state: Any
    """bitsandbytes' own: scales, shape, and the 16 values."""

    @classmethod
    def of(cls, weight: Tensor) -> "Nf4":
        """The weight, quantised where it lies."""
        functional = require_bitsandbytes("model.quantize 'nf4'").functional
        return cls(*functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True))

    def whole(self) -> Tensor:
        """[O I] in float32."""
        return import_module("bitsandbytes").functional.dequantize_4bit(self.codes, self.state)

    def parts(self) -> list[Tensor]:
        """Codes, scales, and the scales' own."""
        state = self.state
        return [self.codes, state.absmax, state.offset, state.state2.absmax]


class Int8(NamedTuple):
    """8-bit integers with one scale a row (the weights' half of LLM.int8, arXiv:2208.07339).

    Activations stay as they are: in 8 bits they would be cut off by what else is in the batch.
    """

    codes: Tensor
    scales: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> "Int8":
        """The weight, quantised where it lies."""
        functional = require_bitsandbytes("model.quantize 'int8'").functional
        # On the CPU whatever the device: its kernel takes float32, and gives the same bits everywhere.
        codes, scales, _ = functional.int8_vectorwise_quant(weight.cpu())
        return cls(codes.to(weight.device), scales.to(weight.device))

    def whole(self) -> Tensor:
        """[O I] in float32."""
        # bitsandbytes' own multiplies twice, by the scale and by 1/127, each a pass over the weight.
        return self.codes.to(torch.float32).mul_((self.scales / 127)[:, None])

    def parts(self) -> list[Tensor]:
        """Codes and scales."""
        return [self.codes, self.scales]


KINDS: Mapping[str, Callable[[Tensor], Stored]] = {"nf4": Nf4.of, "int8": Int8.of}


class QuantizedLinear(nn.Linear):
    """A frozen linear layer over a stored weight; a `Linear` to those who put adapters on such."""

    def __init__(self, stored: Stored, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        self.stored = stored
        self.out_features, self.in_features = stored.whole().shape
        self.register_buffer("bias", bias)

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride] - made when asked for
        """[O I] in float32, anew each time."""
        return self.stored.whole()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - its name in torch
        """The product with the weight, in the precision of the input or of autocast."""
        kind = input.device.type
        is_low = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if is_low else input.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return cast(Tensor, _Product.apply(input.to(dtype), self.stored, bias))


class _Product(torch.autograd.Function):
    """x W^T + b, keeping nothing but the stored weight; W has no gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, stored: Stored, bias: Tensor | None) -> Tensor:
        ctx.stored = stored
        return F.linear(hidden, stored.whole().to(hidden.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, None, None]:
        return grad @ ctx.stored.whole().to(grad.dtype), None, None


def quantize(model: PreTrainedModel, kind: str, device: torch.device) -> str:
    """Quantises the model's linear layers onto the device, all but its head; says what it did.

    One after the other, each from float32 and given up once it is done. What is left (embeddings, norms,
    head) becomes float32. Raises ConfigError for a model without linear layers.
    """
    names = _names(model)
    if not names:
        raise ConfigError(
            f"model.quantize is {kind!r}, but this {model.config.model_type} model has no linear layers "
            "beside its head (GPT-2 has layers of another kind). Leave model.quantize out."
        )
    before = after = 0
    for name in names:
        module = cast(nn.Linear, model.get_submodule(name))
        stored = KINDS[kind](module.weight.detach().to(device, torch.float32))
        bias = None if module.bias is None else module.bias.detach().to(device, torch.float32)
        before += 4 * module.weight.numel()
        after += sum(part.nbytes for part in stored.parts())
        model.set_submodule(name, QuantizedLinear(stored, bias))
    nn.Module.to(model, torch.float32)
    return (
        f"{len(names)} linear layers in {kind}: {after / 1e6:,.1f} MB instead of {before / 1e6:,.1f} in "
        "float32; embeddings, norms and head stay float32"
    )


def _names(model: PreTrainedModel) -> list[str]:
    """Of the layers to quantise. A list of the modules would keep all their weights until the end."""
    head = model.get_output_embeddings()
    return [
        name for name, module in model.named_modules() if type(module) is nn.Linear and module is not head
    ]


def quantized_bytes(model: PreTrainedModel, kind: str) -> int:
    """What `quantize` will make of the layers' weights, whose shapes alone are looked at."""
    weights = [cast(nn.Linear, model.get_submodule(name)).weight for name in _names(model)]
    return sum(_BYTES[kind](*weight.shape) for weight in weights)


def _nf4_bytes(rows: int, columns: int) -> int:
    """Half a byte a weight, a byte a block of 64, a float32 for 256 such bytes, and one for their offset."""
    blocks = -(-rows * columns // 64)
    return -(-rows * columns // 2) + blocks + 4 * -(-blocks // 256) + 4


def _int8_bytes(rows: int, columns: int) -> int:
    """A byte a weight, and a float32 a row."""
    return rows * columns + 4 * rows


_BYTES: Mapping[str, Callable[[int, int], int]] = {"nf4": _nf4_bytes, "int8": _int8_bytes}


def digest(model: nn.Module) -> str | None:
    """Start of the SHA-256 of all quantised weights; None where there are none."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    if not layers:
        return None
    found = hashlib.sha256()
    for layer in layers:
        for part in layer.stored.parts():
            found.update(part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]
