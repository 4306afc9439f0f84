"""Modules of a model in fewer passes over memory, with less kept for the backward.

On a CPU what lies between the matrix products takes a quarter of an update, since autograd's own way
passes over every activation once per operation and keeps most results. Modules of known shape get a
forward of their own with its gradient written out; each but an embedding, whose forward is torch's own, is
compared with the module's own forward before it takes its place. Weights, names and everything else about
the model stay as they are.

Axes: N rows (whatever the leading axes are), E features in, O features out, I inner features, r rank.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from muster.frozen import Product, Ways
from muster.layers import adapted, adapter_of, embedded, straight

TOLERANCE = 1e-5
"""Of a module's largest output, by which its new forward may differ: both round in float32."""
PROBE_ROWS = 3
PRECISIONS = (torch.float32, torch.float64)

Forward = Callable[[Tensor], Tensor]


def slim(model: nn.Module, ways: Ways | None = None) -> int:
    """Gives every module that is known its leaner forward; how many there were.

    For models on a CPU in float32 or float64: elsewhere none is touched. `ways` says, now or later, how
    their products are computed.
    """
    ways = ways or Ways()
    changed = _slim_embeddings(model, ways)
    for module, candidates in list(_known(model, ways)):
        own = cast(Forward, module.forward)
        size, weight = _inputs_of(module)
        if weight.device.type != "cpu" or weight.dtype not in PRECISIONS:
            continue
        probe = torch.randn(PROBE_ROWS, size, generator=torch.Generator().manual_seed(0)).to(weight)
        for candidate in candidates:
            if _agree(own, candidate, probe):
                module.forward = partial(_for_its_precision, own, candidate, weight.dtype)
                changed += 1
                break
    return changed


def _slim_embeddings(model: nn.Module, ways: Ways) -> int:
    """The same for embeddings as they come: one that is tied to the head has that gradient to be added to."""
    changed = 0
    for module in model.modules():
        if _is_plain_embedding(module) and "forward" not in vars(module):
            module.forward = partial(embedded, module, ways)
            changed += 1
    return changed


def _is_plain_embedding(module: nn.Module) -> bool:
    if type(module) is not nn.Embedding or module.max_norm is not None:
        return False
    is_here = module.weight.device.type == "cpu" and module.weight.dtype in PRECISIONS
    return is_here and not module.scale_grad_by_freq and not module.sparse


def _for_its_precision(own: Forward, lean: Forward, dtype: torch.dtype, hidden: Tensor) -> Tensor:
    """Under autocast, or in another precision than its weights', a module computes as it did."""
    if hidden.dtype != dtype or torch.is_autocast_enabled(hidden.device.type):
        return own(hidden)
    return lean(hidden)


def _agree(own: Forward, lean: Forward, probe: Tensor) -> bool:
    with torch.no_grad():
        expected = own(probe)
        return bool((lean(probe) - expected).abs().max() <= TOLERANCE * expected.abs().max())


def _known(model: nn.Module, ways: Ways) -> Iterator[tuple[nn.Module, list[Forward]]]:
    """Modules that look like one of the kinds, with the forwards that might be theirs."""
    below = {id(module.get_base_layer()) for module in model.modules() if isinstance(module, LoraLinear)}
    for module in model.modules():
        if getattr(module.forward, "func", None) is _for_its_precision:
            continue
        if type(module).__name__.endswith("RMSNorm") and eps_of(module) is not None:
            # Gemma stores how far its weight is from 1; the comparison tells which it is.
            yield module, [partial(_norm, module, 0.0), partial(_norm, module, 1.0)]
        elif (activation := activation_of(module)) is not None:
            yield module, [partial(_gated_mlp, module, activation, ways)]
        elif isinstance(module, LoraLinear) and (adapter := adapter_of(module, ways)) is not None:
            yield module, [partial(adapted, adapter)]
        elif type(module) is nn.Linear and module.bias is None and id(module) not in below:
            yield module, [partial(straight, Product(module, ways))]


def _inputs_of(module: nn.Module) -> tuple[int, Tensor]:
    """Features that the module takes, and a weight of it."""
    place: Any = module
    if isinstance(module, LoraLinear):
        place = module.get_base_layer()
    elif not hasattr(module, "weight"):
        place = place.gate_proj
        place = place.get_base_layer() if isinstance(place, LoraLinear) else place
    return place.weight.shape[-1], place.weight


# Root mean square norm (arXiv:1910.07467)


def eps_of(module: Any) -> float | None:
    """What a norm adds to the mean square; None of a module that is no such norm, or has no weight."""
    found = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    has_weight = isinstance(getattr(module, "weight", None), nn.Parameter) and module.weight.ndim == 1
    return found if has_weight and isinstance(found, float) else None


def _norm(module: Any, offset: float, hidden: Tensor) -> Tensor:
    eps = eps_of(module)
    assert eps is not None, type(module)
    return norm(hidden, module.weight + offset if offset else module.weight, eps)


def norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[... E] over its root mean square, times the weight [E]."""
    return cast(Tensor, _Norm.apply(hidden, weight, eps))


class _Norm(torch.autograd.Function):
    """y = w x / rms(x), weight and all.

    With s = 1 / rms(x) and g = dL/dy:

        dL/dx = s w g - x s^3 <w g, x> / E
        dL/dw = sum over rows of s x g
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        scale = norm.square_().div_(hidden.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(hidden, weight, scale)
        return (hidden * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator hides the names
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        hidden, weight, scale = cast(tuple[Tensor, ...], ctx.saved_tensors)
        size = hidden.shape[-1]
        product = (grad * hidden).reshape(-1, size)
        of_weight = torch.mv(product.t(), scale.reshape(-1)) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, of_weight, None
        along = torch.mv(product, weight).view_as(scale).mul_(scale).mul_(scale).div_(-size)
        of_hidden = torch.addcmul(grad * weight, hidden, along).mul_(scale)
        return of_hidden, of_weight, None


# Gated MLP (arXiv:2002.05202): down(act(gate(x)) * up(x))


class Activation(NamedTuple):
    """A gate's function and the gradient through it."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    """From the gradient of the result and the input to the gradient of the input."""


SILU = Activation(F.silu, torch.ops.aten.silu_backward)
GELU = Activation(
    partial(F.gelu, approximate="tanh"), partial(torch.ops.aten.gelu_backward, approximate="tanh")
)
ACTIVATIONS = {"SiLU": SILU, "SiLUActivation": SILU, "GELUTanh": GELU}
"""By the names of transformers' classes; what one of them really computes is compared."""


def activation_of(module: Any) -> Activation | None:
    """Of a module of three linear layers named as in Llama; None for any other."""
    parts = dict(module.named_children())
    if parts.keys() != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return None
    layers = [parts[name] for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(type(layer) is nn.Linear or isinstance(layer, LoraLinear) for layer in layers):
        return None
    return ACTIVATIONS.get(type(parts["act_fn"]).__name__)


def _gated_mlp(module: Any, activation: Activation, ways: Ways, hidden: Tensor) -> Tensor:
    layers = (module.gate_proj, module.up_proj, module.down_proj)
    if all(_is_trained(layer) for layer in layers):
        weights = (layer.weight for layer in layers)
        return cast(Tensor, _GatedMlp.apply(hidden, *weights, activation, ways))
    return module.down_proj(gated(module.gate_proj(hidden), module.up_proj(hidden), activation))


def gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """act(gate) * up, of any shape."""
    return cast(Tensor, _Gated.apply(gate, up, activation))


def _is_trained(layer: Any) -> bool:
    return type(layer) is nn.Linear and layer.bias is None and layer.weight.requires_grad


class _Gated(torch.autograd.Function):
    """act(gate) * up, keeping the two alone."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        return activation.forward(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        gate, up = cast(tuple[Tensor, Tensor], ctx.saved_tensors)
        of_up = ctx.activation.forward(gate).mul_(grad)
        return ctx.activation.backward(grad * up, gate), of_up, None


class _GatedMlp(torch.autograd.Function):
    """The three layers as one: what enters `down` is computed again instead of kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor,
        down_weight: Tensor,
        activation: Activation,
        ways: Ways,
    ) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        gate, up = ways.product(flat, gate_weight), ways.product(flat, up_weight)
        ctx.save_for_backward(hidden, gate, up, gate_weight, up_weight, down_weight)
        ctx.activation, ctx.ways = activation, ways
        out = ways.product(activation.forward(gate).mul_(up), down_weight)
        return out.view(*hidden.shape[:-1], out.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, gate, up, gate_weight, up_weight, down_weight = cast(tuple[Tensor, ...], ctx.saved_tensors)
        flat, grad = (x.reshape(-1, x.shape[-1]) for x in (hidden, grad))
        wants_hidden, wants_gate, wants_up, wants_down = ctx.needs_input_grad[:4]
        activated = ctx.activation.forward(gate)
        ways: Ways = ctx.ways
        of_down = ways.of_weight(down_weight, grad, activated * up) if wants_down else None
        inner = ways.product(grad, down_weight.t())
        of_gate = ctx.activation.backward(inner * up, gate)
        of_up = inner.mul_(activated)
        of_hidden = None
        if wants_hidden:
            of_hidden = ways.product(of_gate, gate_weight.t()).add_(ways.product(of_up, up_weight.t()))
            of_hidden = of_hidden.view_as(hidden)
        return (
            of_hidden,
            ways.of_weight(gate_weight, of_gate, flat) if wants_gate else None,
            ways.of_weight(up_weight, of_up, flat) if wants_up else None,
            of_down,
            None,
            None,
        )
