"""Weights divided among ranks: each holds some rows of every parameter (FSDP2, arXiv:2304.11277).

So are gradients, and what an optimizer remembers. In a pass, each layer's weights are gathered when it is
their turn and let go after it, and its gradient is summed and divided as soon as it is known. Ranks meet in
every pass: all of them make as many.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from muster.dist import is_first, rank, world_size
from muster.errors import ModelError
from muster.holding import on_cpu, refuse_other_shapes


class Shards:
    """The rank's rows of every parameter of a model that is trained whole, without an adapter.

    A rank holds as many rows as any other, the last ones fewer or none where they don't come out even.
    What no pass makes use of gets a gradient of zero.
    """

    def __init__(self, model: nn.Module, backbone: nn.Module, head: nn.Module) -> None:
        """Divides the model; raises ModelError where it can't be."""
        self._model = model
        self._pass = _Pass(backbone, head)
        self._is_whole = False
        sizes = {name: param.shape[0] for name, param in model.named_parameters() if param.ndim}
        layers = [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
        self._rest, *self._layers = _divide(self._pass, layers, type(model).__name__)
        self.rows: Mapping[str, range] = {name: _rows_of(size) for name, size in sizes.items()}
        """By parameter, which of its rows are held here."""
        self._params = dict(model.named_parameters())
        self._parts = {name: _part_of(name, param, self.rows[name]) for name, param in self._params.items()}

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The rank's rows of every parameter, by name; tied ones once."""
        return iter(self._parts.items())

    @contextmanager
    def using(self, weights: Mapping[str, Tensor] | None) -> Generator[None]:
        """Runs the model on other weights, of which this rank has the same rows.

        They are copied into the place of the trained ones, which are kept meanwhile and put back.
        """
        if weights is None:
            yield
            return
        assert not self._is_whole, "gathered weights would stay as they are"
        kept = {name: part.detach().clone() for name, part in self._parts.items()}
        refuse_other_shapes(weights, kept)
        try:
            self._put(weights)
            yield
        finally:
            self._put(kept)

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, part in self._parts.items():
                part.copy_(weights[name])

    @contextmanager
    def whole(self) -> Generator[None]:
        """All weights are here for as long as this lasts, and ranks need not meet; every rank enters."""
        if self._is_whole:
            yield
            return
        self._rest.reshard()
        self._keep_layers(True)
        for group in (self._rest, *self._layers):
            group.unshard()
        self._is_whole = True
        try:
            yield
        finally:
            self._is_whole = False
            for group in (self._rest, *self._layers):
                group.reshard()
            self._keep_layers(False)

    def _keep_layers(self, are_kept: bool) -> None:
        """Whether a layer's weights stay after its forward."""
        for layer in self._layers:
            layer.set_reshard_after_forward(not are_kept, recurse=False)

    def through(self, work: Callable[[], Tensor]) -> Tensor:
        """What a pass over the backbone gives; what is beside the layers stays until the next pass.

        A backward from what it gives lets go of it, too, and divides the gradients.
        """
        if not self._is_whole:
            # Of a pass without a backward, maybe on other weights.
            self._rest.reshard()
        return cast(Tensor, self._pass(work))

    def sum_gradients(self) -> None:
        """Gives this rank's rows the gradient that the passes since the last call have summed."""
        for name, part in self._parts.items():
            found = self._params[name].grad
            part.grad = None if found is None else _local(found)
            self._params[name].grad = None

    def gathered(self) -> dict[str, Tensor]:
        """All weights by name on rank 0, on the CPU; every rank asks, and the others are given none."""
        with self.whole():
            return on_cpu(self._model) if is_first() else {}


class _Pass(nn.Module):
    """What is beside the layers: embedding, norm, head. One module, since the first and the last may be tied.

    It is called with the pass over the backbone, so that the weights are here for whatever follows: the
    head goes forward and backward a few rows at a time, outside of any module's own call.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """What the work gives."""
        return work()


def _divide(whole: _Pass, layers: Sequence[nn.Module], name: str) -> list[FSDPModule]:
    """Has FSDP divide the rest and each layer by itself among all ranks; the groups, in this order.

    Raises ModelError, with the model's name, where FSDP can't.
    """
    mesh = init_device_mesh(next(whole.parameters()).device.type, (world_size(),))
    try:
        divided = [fully_shard(layer, mesh=mesh, reshard_after_forward=True) for layer in layers]
        rest = fully_shard(whole, mesh=mesh, reshard_after_forward=False)
        # FSDP meets its root, and sees what two groups share, in the first pass.
        whole(lambda: torch.empty(0))
    except (ValueError, NotImplementedError) as error:
        reason = str(error).rstrip(".")
        raise ModelError(
            f'{name} can\'t be divided among ranks: {reason}. Set run.layout = "replicate".'
        ) from error
    rest.reshard()
    # By default the weights of whatever ran before are fetched in a backward, which may differ by rank:
    # not all of them sample by the same modules.
    for before, group in zip([rest, *divided], [*divided, rest], strict=True):
        group.set_modules_to_backward_prefetch([before])
        # Totals are those of all ranks, so gradients are summed; gloo has no sum that multiplies first.
        group.set_gradient_divide_factor(1.0)
        group.set_force_sum_reduction_for_comms(True)
    # Of a mixture's experts each rank may need others.
    rest.set_reduce_scatter_unused_params(True)
    return [rest, *divided]


def _rows_of(size: int) -> range:
    """The rank's rows of so many, as FSDP divides them."""
    share = -(-size // world_size())
    return range(min(rank() * share, size), min((rank() + 1) * share, size))


def _part_of(name: str, param: Tensor, rows: range) -> nn.Parameter:
    """The rank's rows, in the memory from which FSDP gathers them."""
    part = nn.Parameter(_local(param))
    assert len(part) == len(rows), f"{name}: {len(part)} rows instead of {rows}"
    return part


def _local(tensor: Tensor) -> Tensor:
    """The rank's rows of a tensor that is divided."""
    assert isinstance(tensor, DTensor), type(tensor)
    with torch.no_grad():
        return tensor.to_local()
