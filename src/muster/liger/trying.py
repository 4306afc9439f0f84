"""The trial of a kernel: equal to `muster.lean`'s function in float64 within rounding, and how fast.

Axes: N rows, E features.
"""

import time
from collections.abc import Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from muster.devices import settling
from muster.liger.parts import Function, Part, mlp_by, product_dtype
from muster.liger.pieces import Trial
from muster.measured import recalled

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6}
"""By which a result, or a gradient, may be off the one in float64, over the largest value of that.

In bfloat16 (unit roundoff u = 2^-8) modules and kernels round twice on the way to each value and sum in
float32: 2 u, and 4 u leave as much again. In float32 (u = 2^-24) what rounds most are the sums over E
features or, for a weight's gradient, over the rows; 168 u leave room for both.
"""
FEW_ROWS = 61
ROUNDS, REPEATS = 4, 3


def tried(parts: Sequence[tuple[Part, Tensor]], dtype: torch.dtype, num_elements: int, version: str) -> Trial:
    """How the kernel does on each of the parts with few rows, and on one of them with so many elements.

    The parts are of one name; each comes with what its module is given for a token. How fast kernels of that
    version are is what was measured on this machine before.
    """
    first, _ = parts[0]
    many = max(num_elements // first.size, FEW_ROWS)
    try:
        trials = [_compared(part, dtype, FEW_ROWS) for part, _ in parts]
        trials += [_whole(part, given) for part, given in parts if part.weight is None]
        # Kernels cut many rows otherwise than few.
        trials.append(_compared(first, dtype, many))
        if refused := next((trial for trial in trials if trial.refused), None):
            return refused
        off = (max(trial.forward for trial in trials), max(trial.backward for trial in trials))
        return Trial(forward=off[0], backward=off[1], speed=_recalled_speed(first, dtype, many, version))
    except Exception as error:  # a kernel may fail here in any way, and there is the module's own code
        return Trial(refused=said(error))


def said(error: Exception) -> str:
    """Its kind and first line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _compared(part: Part, dtype: torch.dtype, rows: int) -> Trial:
    """Results and gradients, of the module's own code and of the kernel, against those in float64."""
    inputs, grad = _probe(part, dtype, rows)
    weights = [] if part.weight is None else [part.weight]
    exactly = _leaves([tensor.double() for tensor in [*inputs, *weights]])
    exact = _results(part.exact, exactly, [], grad.double())
    own, found = (_results(by, _leaves(inputs), _trained(part), grad) for by in (part.own, part.kernel))
    if found[0].dtype != own[0].dtype:
        return Trial(refused=f"gives {found[0].dtype}, where the module gives {own[0].dtype}")
    off = _off(found, exact)
    for whose, values in (("its module's", _off(own, exact)), ("its", off)):
        for label, value in zip(part.labels, values):
            if not value <= BOUNDS[dtype]:
                return Trial(refused=f"{whose} {label} is off by {value:.1e} of the largest value")
    return Trial(forward=off[0], backward=max(off[1:]))


def _whole(part: Part, given: Tensor) -> Trial:
    """Whether a gated MLP does no more than its parts: its result with the kernel against its own."""
    probe = torch.randn(FEW_ROWS, given.shape[-1], generator=torch.Generator().manual_seed(1)).to(given)
    with torch.no_grad():
        expected, found = part.module.forward(probe), mlp_by(part, probe)
    [off] = _off([found], [expected.double()])
    # Either of them may be off the exact one by the bound.
    if not off <= 2 * BOUNDS[product_dtype(given)]:
        return Trial(refused=f"with it the whole module's result is off by {off:.1e} of the largest value")
    return Trial()


def _probe(part: Part, dtype: torch.dtype, rows: int) -> tuple[list[Tensor], Tensor]:
    """What goes in, and the gradient of what comes out: normal numbers, the same at every start."""
    device = next(part.module.parameters()).device
    generator = torch.Generator().manual_seed(0)
    shape, num_inputs = (rows, part.size), 2 if part.weight is None else 1
    inputs = [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(num_inputs)]
    with torch.no_grad():
        result = part.own(*inputs)
    return inputs, torch.randn(shape, generator=generator).to(result)


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies whose gradients can be asked for, and that kernels may write over."""
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def _trained(part: Part) -> list[nn.Parameter]:
    return [part.weight] if part.weight is not None and part.weight.requires_grad else []


def _results(
    function: Function, inputs: Sequence[Tensor], weights: Sequence[Tensor], grad: Tensor
) -> list[Tensor]:
    """The function's result, and the gradients of what goes in and of weights."""
    with torch.enable_grad():
        result = function(*inputs)
        gradients = torch.autograd.grad(result, [*inputs, *weights], grad.to(result.dtype))
    # A gradient that was written over an input is that input.
    return [tensor.detach() for tensor in (result, *gradients)]


def _off(found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Largest differences, each over the largest exact value; none of what wasn't found."""
    pairs = zip(found, exact)
    return [float((one.double() - true).abs().max() / true.abs().max()) for one, true in pairs]


def _recalled_speed(part: Part, dtype: torch.dtype, rows: int, version: str) -> float:
    device = next(part.module.parameters()).device
    about = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "version": version,
        "piece": part.names[dtype],
        "module": type(part.module).__qualname__,
        "rows": rows,
    }
    measure = partial(_speed, part, dtype, rows)
    return recalled("kernels", about, measure, to_plain=float, from_plain=_as_speed)


def _as_speed(value: object) -> float:
    if not isinstance(value, float):
        raise ValueError(f"{value!r} is no number")
    return value


def _speed(part: Part, dtype: torch.dtype, rows: int) -> float:
    """How many times as fast as the module's own code the kernel is, forward and backward, taking turns."""
    inputs, grad = _probe(part, dtype, rows)
    settle = settling(grad.device)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for function, seconds in zip((part.own, part.kernel), taken, strict=True):
            leaves = _leaves(inputs)
            settle()
            started = time.perf_counter()
            for _ in range(REPEATS):
                _results(function, leaves, _trained(part), grad)
            settle()
            seconds.append(time.perf_counter() - started)
    # The first round warms up.
    return median(taken[0][1:]) / median(taken[1][1:])
