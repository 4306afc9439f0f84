"""liger-kernel's own kernels in the place of modules' code, by the path that a run takes at its start.

`make test-liger`, without a GPU: Triton's interpreter runs the kernels on the CPU, operation by operation.
What they compute is compared, and no time means anything. For each piece it prints by how much results and
gradients are off those in float64, and for each model by how much they move the logprobs and the gradients of
all weights; fails where a piece is refused that should not be, or a model moves by more than rounding.
On a GPU, tests/gpu does the same.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from muster.adapters import add_lora
from muster.liger import Pieces, fit, installed
from muster.policy import Policy
from naive import make_batch
from tiny import tiny_model, tiny_tokenizer

FAMILIES = ("llama", "qwen3", "gemma")
SIZES: dict[str, Any] = {"hidden_size": 192, "intermediate_size": 320, "head_dim": 48}
"""No powers of two, so that kernels have to mask what lies beyond a row."""
BATCH = make_batch([(7, [5, 1]), (3, [2, 3, 1, 6, 4])])
FORMS: tuple[tuple[str, bool, torch.dtype | None], ...] = (
    ("all weights", False, None),
    ("all weights", False, torch.bfloat16),
    ("an adapter", True, None),
)
MOVED = 1e-4
"""Nats that float32 explains; of a parameter's gradient, over its largest value.

In bfloat16 as much is allowed as bfloat16 itself moves the model from float32.
"""


class Compared(NamedTuple):
    """A model by kernels against the same by its own code."""

    pieces: Pieces
    refused: set[str]
    logprobs: float
    """Largest difference, in nats."""
    gradients: float
    """Largest difference of a parameter's gradient, over its largest value."""
    allowed: tuple[float, float]
    """Of logprobs, and of gradients."""


def policy_of(family: str, has_adapter: bool, autocast: torch.dtype | None, device: torch.device) -> Policy:
    model = tiny_model(family, **SIZES)
    nn.Module.to(model, device)
    if has_adapter:
        adapted = add_lora(model, rank=4, alpha=8.0, targets=["q_proj", "gate_proj", "down_proj"], seed=2)
        generator = torch.Generator().manual_seed(3)
        for name, param in adapted.named_parameters():
            if "lora_B" in name:
                param.data.copy_(torch.randn(param.shape, generator=generator) / 10)
        return Policy(adapted, tiny_tokenizer(), max_tokens=256, autocast=autocast)
    return Policy(model, tiny_tokenizer(), max_tokens=256, autocast=autocast)


def scored(policy: Policy) -> list[Tensor]:
    """Logprobs, and the gradient of every parameter."""
    policy.model.zero_grad()
    logprobs = policy.score(BATCH, temperature=0.7).logprobs
    logprobs.sum().backward()
    gradients = [param.grad.clone() for _, param in policy.trainable() if param.grad is not None]
    return [logprobs.detach(), *gradients]


def compared(
    family: str, has_adapter: bool, autocast: torch.dtype | None, device: torch.device, num_elements: int
) -> Compared:
    """The model's pieces tried, and all that are equal taken, however fast."""
    policy = policy_of(family, has_adapter, autocast, device)
    before = scored(policy)
    policy.pieces = fit(policy.backbone, policy.precision, device_type=device.type, num_elements=num_elements)
    pieces = policy.pieces
    refused = {name for name, trial in pieces.trials.items() if trial.refused}
    pieces.taken = frozenset(pieces.trials.keys() - refused)
    after = scored(policy)
    allowed = (MOVED, MOVED)
    if autocast is not None:
        allowed = moves(before, scored(policy_of(family, has_adapter, None, device)))
    return Compared(pieces, refused, *moves(after, before), allowed)


def moves(mine: Sequence[Tensor], other: Sequence[Tensor]) -> tuple[float, float]:
    """Largest differences of logprobs, in nats, and of gradients, each over its parameter's largest."""
    off = [(one - two).abs().max() for one, two in zip(mine, other, strict=True)]
    return float(off[0]), max(float(gap / two.abs().max()) for gap, two in zip(off[1:], other[1:]))


def expected_refusals(family: str, autocast: torch.dtype | None) -> set[str]:
    """Qwen3's norms of heads, given bfloat16 by a product, leave float32, and the kernel bfloat16."""
    return {f"norm {SIZES['head_dim']} bfloat16"} if family == "qwen3" and autocast is not None else set()


def check(found: Compared, family: str, autocast: torch.dtype | None) -> None:
    """Fails where a piece is refused, or moves the model, as it should not."""
    assert len(found.pieces.trials) >= 2, found.pieces
    assert found.refused == expected_refusals(family, autocast), found.pieces.lines()
    assert 0 < found.logprobs <= found.allowed[0], found
    assert 0 < found.gradients <= found.allowed[1], found


def tell(found: Compared) -> None:
    for name, trial in sorted(found.pieces.trials.items()):
        said = trial.refused or f"results off by {trial.forward:.1e}, gradients by {trial.backward:.1e}"
        print(f"  {name:<20} {said}", flush=True)
    bounds = " and ".join(f"{bound:.1e}" for bound in found.allowed)
    print(
        f"  the model: logprobs {found.logprobs:.1e} nats, gradients {found.gradients:.1e} ({bounds} allowed)"
    )


def main(families: Sequence[str]) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit(
            "set TRITON_INTERPRET=1, as `make test-liger` does: Triton asks for it when it is imported"
        )
    supply_what_the_interpreter_lacks()
    kernels = installed()
    assert kernels is not None, "liger-kernel is not installed here"
    print(f"liger-kernel {kernels.version}, by Triton's interpreter on a CPU")
    for family in families:
        for form, has_adapter, autocast in FORMS:
            print(f"{family}, {form}, {'float32' if autocast is None else 'bfloat16'}", flush=True)
            found = compared(family, has_adapter, autocast, torch.device("cpu"), num_elements=2**14)
            tell(found)
            check(found, family, autocast)


def supply_what_the_interpreter_lacks() -> None:
    """Has Triton's interpreter compute what it can't, as a GPU does.

    Numbers that a kernel is given are float32 scalars, not Python's; products and sums of bfloat16 are those
    of float32, rounded; libdevice's two functions are Triton's own `rsqrt`, and 2 sigmoid(2 x) - 1.
    """
    interpreter: Any = import_module("triton.runtime.interpreter")
    tl: Any = import_module("triton.language")
    builder = interpreter.InterpreterBuilder
    converted, binary = interpreter._implicit_cvt, builder.binary_op

    def as_scalar(value: object) -> object:
        if not isinstance(value, float):
            return converted(value)
        return tl.tensor(interpreter.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)

    def rounded(self: Any, lhs: Any, rhs: Any, op: Any) -> object:
        if lhs.dtype.scalar != tl.bfloat16:
            return binary(self, lhs, rhs, op)
        wide = [self.cast_impl(part, tl.float32) for part in (lhs, rhs)]
        return self.cast_impl(binary(self, *wide, op), tl.bfloat16)

    interpreter._implicit_cvt, builder.binary_op = as_scalar, rounded
    vars(import_module("liger_kernel.ops.rms_norm"))["rsqrt"] = lambda x: tl.rsqrt(x)
    vars(import_module("liger_kernel.ops.geglu"))["tanh"] = lambda x: 2 * tl.sigmoid(2 * x) - 1


if __name__ == "__main__":
    main(sys.argv[1:] or FAMILIES)
