"""Where a policy's weights are between passes: whole in this process, or divided among the ranks."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from torch import Tensor, nn

from muster.dist import add_gradients, is_first
from muster.errors import ModelError


class Holding(Protocol):
    """Holds the weights of a model that is trained."""

    @property
    def rows(self) -> Mapping[str, range] | None:
        """By parameter, which of its rows are held here; None where all are."""
        ...

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is held here of the parameters that training changes, by name; tied ones once."""
        ...

    def using(self, weights: Mapping[str, Tensor] | None) -> AbstractContextManager[None]:
        """Runs the model on other trainable weights, held as these are; None changes nothing."""
        ...

    def whole(self) -> AbstractContextManager[None]:
        """All weights are here for as long as this lasts; every rank enters."""
        ...

    def through(self, work: Callable[[], Tensor]) -> Tensor:
        """What a pass over the backbone gives; the head's weights are here until the next one."""
        ...

    def sum_gradients(self) -> None:
        """Gives each of `trainable` its gradient, summed over the ranks."""
        ...

    def gathered(self) -> dict[str, Tensor]:
        """All weights by name on rank 0, on the CPU; every rank asks, and the others are given none."""
        ...


class Replica:
    """All weights of the model, in every process that trains it."""

    rows = None

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that training changes, by name; tied ones once."""
        return ((name, param) for name, param in self._model.named_parameters() if param.requires_grad)

    @contextmanager
    def using(self, weights: Mapping[str, Tensor] | None) -> Generator[None]:
        """Runs the model on other trainable weights.

        Storages are swapped, not copied, and swapped back also when the body raises, so the trained
        weights are the same bits afterwards.
        """
        current = {name: param.data for name, param in self.trainable()}
        if weights is not None:
            refuse_other_shapes(weights, current)
        try:
            for name, param in self.trainable():
                param.data = current[name] if weights is None else weights[name]
            yield
        finally:
            for name, param in self.trainable():
                param.data = current[name]

    @contextmanager
    def whole(self) -> Generator[None]:
        """All weights are here anyway."""
        yield

    def through(self, work: Callable[[], Tensor]) -> Tensor:
        """What the work gives."""
        return work()

    def sum_gradients(self) -> None:
        """Each gradient becomes the sum of all ranks'."""
        add_gradients([param for _, param in self.trainable()])

    def gathered(self) -> dict[str, Tensor]:
        """A copy of all weights by name on rank 0, on the CPU; the others need none of them."""
        if not is_first():
            return {}
        return on_cpu(self._model)


def on_cpu(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights of a model, by name; tied ones once."""
    return {name: param.detach().to("cpu", copy=True) for name, param in model.named_parameters()}


def refuse_other_shapes(weights: Mapping[str, Tensor], current: Mapping[str, Tensor]) -> None:
    """Raises ModelError where weights and model differ in their trainable parameters."""
    if odd := sorted(weights.keys() ^ current.keys())[:3]:
        raise ModelError(f"weights and model differ in their trainable parameters, for example {odd}")
    for name, tensor in weights.items():
        if tensor.shape != current[name].shape:
            raise ModelError(
                f"{name} is of shape {tuple(tensor.shape)} in the weights, and of "
                f"{tuple(current[name].shape)} in the model"
            )
