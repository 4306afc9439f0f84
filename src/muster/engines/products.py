"""The linear layers' products while tokens are sampled: few rows times large weights.

At 16 to 64 rows the usual product reaches half of what a processor can do or less. Two others are
offered, for any model, without touching its code: the product the other way round, and one on a copy
of the weights that oneDNN has laid out for it. Which is fastest differs between processors, so it is
measured, on the model's own shapes and row count. All three give the same numbers up to rounding.

Axes: N rows, I inputs, O outputs.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from muster.errors import CheckpointError
from muster.frozen import has_onednn, lay_out, multiply
from muster.measured import in_turns, recalled
from muster.memory import available_bytes

Product = Callable[[Tensor], Tensor]
"""[... I] -> [... O]"""


def linear(weight: Tensor, bias: Tensor | None) -> Product:
    """The usual product."""
    return lambda x: F.linear(x, weight, bias)


def turned(weight: Tensor, bias: Tensor | None) -> Product:
    """Weight times transposed input, [O I] @ [I N]: BLAS libraries cut few rows better this way round."""

    def product(x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out = torch.mm(weight, flat.t()).t().contiguous()
        if bias is not None:
            out += bias
        return out.view(*x.shape[:-1], -1)

    return product


def laid_out(weight: Tensor, bias: Tensor | None) -> Product:
    """The product on a copy of the weight in oneDNN's own layout."""
    copy = lay_out(weight)
    return lambda x: multiply(x, copy, bias)


def laid_out_gated(gate: Tensor, up: Tensor, biases: tuple[Tensor | None, Tensor | None]) -> Product:
    """`silu(x @ gate.T) * (x @ up.T)`, the activation and the multiplication inside the products."""
    gates, ups = lay_out(gate), lay_out(up)

    def product(x: Tensor) -> Tensor:
        opened = torch.ops.mkldnn._linear_pointwise(x, gates, biases[0], "swish", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, opened, ups, biases[1], "mul")

    return product


KINDS: Mapping[str, Callable[[Tensor, Tensor | None], Product]] = {
    "linear": linear,
    "turned": turned,
    "laid_out": laid_out,
}
"""From the plainest to the one that costs most to prepare."""


class Choice(NamedTuple):
    """Which product samples; part of a run's checkpoints, since each rounds in its own way."""

    short: str = "linear"
    """For calls whose completions are shorter than `from_tokens`."""
    long: str = "linear"
    from_tokens: int = 0
    """Where the gain of `long` has paid for its copies."""
    is_fused: bool = False
    """Whether decoder families that are known take few operations a token."""

    def of(self, max_tokens: int) -> str:
        """The kind for completions of up to so many tokens."""
        return self.long if max_tokens >= self.from_tokens else self.short


LARGE = 2**22
"""Weights in all below which nothing is measured: they stay in the processor's cache."""
MARGIN = 1.1
"""A kind must be so many times faster than a plainer one, so that equal machines choose equally."""
ROUNDS = 5
"""Timings of each kind, the first of which warms up."""
SHARE = 0.25
"""Of the memory that is free, what copies may take while they last. Gradients, as large as they are, take
it while there are no copies."""


def choose(modules: Iterable[nn.Module], num_rows: int) -> Choice:
    """The fastest products for these linear layers at so many rows, measured in a moment.

    The plain one for small models and outside of CPUs in float32.
    """
    weights = [weight for module in modules if (weight := own_weight(module)) is not None]
    if sum(weight.numel() for weight in weights) < LARGE:
        return Choice()
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return Choice()
    copies = sum(weight.numel() * weight.element_size() for weight in weights)
    has_room = copies <= SHARE * available_bytes(torch.device("cpu"))
    kinds = [kind for kind in kinds_here() if kind != "laid_out" or has_room]
    return remembered(weights, num_rows, kinds)


def kinds_here() -> list[str]:
    """The kinds that this torch can compute."""
    return [kind for kind in KINDS if kind != "laid_out" or has_onednn()]


def remembered(weights: Sequence[Tensor], num_rows: int, kinds: Sequence[str]) -> Choice:
    """What was chosen on this machine before for such weights and rows, else what is measured now."""
    shapes = Counter(tuple(weight.shape) for weight in weights)
    return recalled(
        "products",
        {
            "rows": num_rows,
            "kinds": list(kinds),
            "shapes": sorted([*shape, count] for shape, count in shapes.items()),
        },
        lambda: decide(measure(weights, num_rows, kinds)),
        to_plain=Choice._asdict,
        from_plain=restored,
    )


def restored(values: object) -> Choice:
    """The choice that a checkpoint holds; plain products where it was saved before there was one."""
    if values is None:
        return Choice()
    match values:
        case {
            "short": str(short),
            "long": str(long),
            "from_tokens": int(tokens),
            "is_fused": bool(is_fused),
        } if {short, long} <= {*kinds_here()}:
            return Choice(short, long, tokens, is_fused)
        case _:
            pass
    raise CheckpointError(
        f"state.json of the checkpoint holds products = {values!r}, which this version doesn't know. "
        f"Kinds that this torch computes are {', '.join(kinds_here())}: resume with the version, and a torch "
        "as on the machine, that saved it."
    )


class Seconds(NamedTuple):
    """What a kind of product takes for all linear layers."""

    step: float
    """Per token of every row."""
    preparation: float
    """Once per call."""


def decide(seconds: Mapping[str, Seconds]) -> Choice:
    """The choice that these measurements call for."""
    short = long = "linear"
    from_tokens = 0
    for kind, (step, preparation) in seconds.items():
        if step * MARGIN > seconds[long].step:
            continue
        long, from_tokens = kind, int(preparation / (seconds[short].step - step)) + 1
        if kind == "turned":
            short, from_tokens = kind, 0
    return Choice(short, long, from_tokens)


def measure(weights: Sequence[Tensor], num_rows: int, kinds: Sequence[str]) -> dict[str, Seconds]:
    """Seconds for all the weights, from a few of each shape, the kinds taking turns."""
    shapes: dict[tuple[int, ...], list[Tensor]] = {}
    for weight in weights:
        shapes.setdefault(tuple(weight.shape), []).append(weight)
    steps, preparations = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
    for shape, same in shapes.items():
        few = same[:4]
        scale = len(same) / len(few)
        rows = torch.randn(num_rows, shape[1], generator=torch.Generator().manual_seed(0))
        products: dict[str, list[Product]] = {}
        for kind in kinds:
            started = time.perf_counter()
            products[kind] = [KINDS[kind](weight, None) for weight in few]
            preparations[kind] += scale * (time.perf_counter() - started)
        taken = in_turns([partial(_run, products[kind], rows) for kind in kinds], ROUNDS)
        for kind, seconds in zip(kinds, taken, strict=True):
            steps[kind] += scale * seconds
    return {kind: Seconds(steps[kind], preparations[kind]) for kind in kinds}


def _run(products: Sequence[Product], rows: Tensor) -> None:
    for product in products:
        product(rows)


def linear_layers(*roots: nn.Module) -> list[nn.Module]:
    """The linear layers of these modules whose product can be replaced, an adapter's as one."""
    found: list[nn.Module] = []
    for root in roots:
        if own_weight(root) is not None:
            found.append(root)
        else:
            found += linear_layers(*root.children())
    return found


def own_weight(module: nn.Module) -> Tensor | None:
    """[O I] of a linear layer, of the layer below where it has an adapter; None for anything else."""
    if isinstance(module, LoraLinear):
        has_bias = any(layer.bias is not None for layer in module.lora_B.values())
        plain = not module.merged and not any(module.use_dora.values()) and not has_bias
        return own_weight(module.get_base_layer()) if plain else None
    if type(module) is nn.Linear:
        return module.weight
    return module.weight.t() if isinstance(module, Conv1D) else None


def weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """What the layer multiplies by: [O I], an adapter's product added in, and [O]."""
    weight = own_weight(module)
    assert weight is not None, type(module)
    base = module.get_base_layer() if isinstance(module, LoraLinear) else module
    bias = base.bias if isinstance(base.bias, Tensor) else None
    if isinstance(module, LoraLinear) and not module.disable_adapters:
        for name in module.active_adapters:
            down, up = (cast(Tensor, layers[name].weight) for layers in (module.lora_A, module.lora_B))
            weight = torch.addmm(weight, up, down, alpha=module.scaling[name])
    return weight, bias


@contextmanager
def replaced(modules: Iterable[nn.Module], kind: str) -> Generator[None]:
    """Linear layers compute by another kind of product within; plain ones are left as they are.

    An adapter's layer becomes one product: its weights are added up for as long as this lasts.
    """
    before: list[tuple[nn.Module, Product | None]] = []
    try:
        for module in modules if kind != "linear" else ():
            product = KINDS[kind](*weight_and_bias(module))
            before.append((module, vars(module).get("forward")))
            module.forward = product
        yield
    finally:
        for module, forward in before:
            if forward is None:
                del module.forward
            else:
                # One of our own, for training.
                module.forward = forward
