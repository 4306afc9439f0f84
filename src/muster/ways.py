"""How linear layers compute in training on a CPU: chosen at start, kept by a run's checkpoints.

Whether oneDNN or the BLAS library multiplies many rows faster differs between processors by a tenth
either way, so it is measured, on the model's own shapes. Both give the same numbers up to rounding.

Axes: N rows, I inputs, O outputs.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn

from muster.engines.products import LARGE, SHARE, linear_layers, own_weight
from muster.errors import CheckpointError
from muster.frozen import by_blas, by_onednn, has_onednn
from muster.measured import in_turns, recalled
from muster.memory import available_bytes
from muster.policy import Policy

NUM_ROWS = 1024
"""Of a forward pass that is typical: a group or two."""
MARGIN = 1.03
"""oneDNN must be so many times faster, so that machines on which both are equal choose equally."""
SAMPLED = 2
"""Layers of a shape that are timed."""
ROUNDS = 4
"""Timings of each way, the first of which warms up."""


def choose(policy: Policy, *, may_measure: bool) -> None:
    """Sets the policy's ways of computing in training to what is fastest here and has room.

    Without `may_measure` the BLAS library multiplies: the same on any machine.
    """
    layers = linear_layers(policy.backbone, policy.head)
    # Who has the base in few bits has no memory for copies of the head.
    policy.ways.copies_frozen = policy.quantized is None and should_lay_out(layers)
    policy.ways.onednn = may_measure and policy.autocast is None and should_use_onednn(layers)


def restored(name: str, value: object) -> bool:
    """Whether a checkpoint's run computed so; not where it was saved before there was a choice."""
    if value is True and not has_onednn():
        raise CheckpointError(
            f"the run multiplied by oneDNN ({name} in state.json of the checkpoint), and this torch was "
            "built without it. Resume with a torch that has it, as on the machine that saved the run."
        )
    if value is None or isinstance(value, bool):
        return value is True
    raise CheckpointError(
        f"state.json of the checkpoint holds {name} = {value!r} instead of true or false. Resume with the "
        "version that saved it."
    )


def should_lay_out(modules: Iterable[nn.Module]) -> bool:
    """Whether training gains by copies of the frozen ones of these layers, and has room for two of each."""
    frozen = [weight for weight in _weights(modules) if not weight.requires_grad]
    if not _gain(frozen):
        return False
    return 2 * sum(weight.nbytes for weight in frozen) <= SHARE * available_bytes(torch.device("cpu"))


def should_use_onednn(modules: Iterable[nn.Module]) -> bool:
    """Whether oneDNN computes these layers' products, gradients included, faster than the BLAS library."""
    weights = _weights(modules)
    if not _gain(weights):
        return False
    # The head sees fewer rows and would take as long to measure as all the rest.
    by_size = sorted((weight.detach() for weight in weights), key=lambda weight: tuple(weight.shape))
    shapes = [list(same) for _, same in groupby(by_size, key=lambda weight: tuple(weight.shape))]
    inner = [same for same in shapes if len(same) > 1]
    return recalled(
        "training",
        {"rows": NUM_ROWS, "shapes": [[*same[0].shape, len(same)] for same in inner]},
        lambda: is_faster(inner, by_onednn, by_blas),
        to_plain=bool,
        from_plain=partial(restored, "training"),
    )


def _weights(modules: Iterable[nn.Module]) -> list[Tensor]:
    return [weight for module in modules if (weight := own_weight(module)) is not None]


def _gain(weights: Sequence[Tensor]) -> bool:
    """Whether they are large enough, and of a kind that oneDNN multiplies here."""
    if sum(weight.numel() for weight in weights) < LARGE or not has_onednn():
        return False
    return all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)


def is_faster(
    shapes: Sequence[Sequence[Tensor]],
    one: Callable[[Tensor, Tensor], Tensor],
    other: Callable[[Tensor, Tensor], Tensor],
) -> bool:
    """Whether one way takes less time than the other for the products with all these weights, by a margin."""
    seconds = [0.0, 0.0]
    random = torch.Generator().manual_seed(0)
    for same in shapes:
        num_out, num_in = same[0].shape
        rows, grads = (torch.randn(NUM_ROWS, size, generator=random) for size in (num_in, num_out))
        few = same[:SAMPLED]
        for place, taken in enumerate(
            in_turns([partial(_run, way, few, rows, grads) for way in (one, other)], ROUNDS)
        ):
            seconds[place] += len(same) / len(few) * taken
    return seconds[0] * MARGIN < seconds[1]


def _run(
    way: Callable[[Tensor, Tensor], Tensor], weights: Sequence[Tensor], rows: Tensor, grads: Tensor
) -> None:
    for weight in weights:
        way(rows, weight)
        way(grads, weight.t())
