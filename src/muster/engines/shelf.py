"""Weights on their way to what samples: a folder per load, in a place that both see."""

import secrets
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, cast, runtime_checkable

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from muster.engines.answers import Label
from muster.errors import DiskFullError
from muster.files import discard, make_folder, need_room, staged, write_by
from muster.quiet import quiet


@runtime_checkable
class Servable(Protocol):
    """What the engine needs of a policy."""

    @property
    def model(self) -> PreTrainedModel | PeftModel:
        """What is written: an adapter, or full weights."""
        ...

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that training changes, by name."""
        ...

    def using(self, weights: Mapping[str, Tensor] | None) -> AbstractContextManager[None]:
        """Runs on other trainable weights."""
        ...


class Load(NamedTuple):
    """Weights that servers are to hold."""

    label: Label
    folder: Path


class Shelf:
    """Holds weights, in the form that servers read, until they are dropped or it is cleared.

    An adapter is written as peft writes it, full weights as transformers does: safetensors in float32.
    """

    def __init__(self, share: str | None) -> None:
        # Another run may use the same folder, and the same servers: names are never met twice.
        self._token = secrets.token_hex(4)
        self._share = share
        self._place: Path | None = None
        self.load: Load | None = None
        """The newest."""

    def label(self, policy: Servable, version: int) -> Label:
        """What the weights of that version are called, whether they are written or not."""
        is_adapter = isinstance(policy.model, PeftModel)
        return Label(name=f"muster-{self._token}-{version}", version=version, is_adapter=is_adapter)

    def put(self, policy: Servable, weights: Mapping[str, Tensor], version: int) -> Load:
        """Writes these weights, the newest then; raises DiskFullError, and leaves nothing of them."""
        label = self.label(policy, version)
        with _told_of(self._share), policy.using(weights), quiet():
            folder = self._folder() / label.name
            _write(policy.model, folder, weights)
        self.load = Load(label, folder)
        return self.load

    def drop(self, load: Load) -> None:
        """Removes weights that no server will read any more."""
        discard(load.folder)

    def clear(self) -> None:
        """Removes what it wrote."""
        if self._place is not None:
            discard(self._place)
        self._place = self.load = None

    def _folder(self) -> Path:
        if self._place is None and self._share is None:
            self._place = Path(tempfile.mkdtemp(prefix="muster-weights-"))
        elif self._place is None:
            self._place = Path(self._share or "").expanduser().absolute() / f"muster-{self._token}"
            make_folder(self._place)
        return self._place


@contextmanager
def _told_of(share: str | None) -> Generator[None]:
    """Says of a disk that is full what it is for, and what else can be done."""
    setting = "TMPDIR" if share is None else "engine.options.share"
    try:
        yield
    except DiskFullError as error:
        raise DiskFullError(
            f"{error} vLLM is given new weights there; {setting} names another folder."
        ) from error


def _write(model: PreTrainedModel | PeftModel, folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes the folder, whole or not at all, of a model that runs on these weights."""
    head = head_of_its_own(model)
    needed = sum(tensor.nbytes for tensor in (*weights.values(), *head.values()))
    need_room(folder.parent, needed)
    with staged(folder) as staging:
        write_by(cast(Callable[[Path], object], model.save_pretrained), staging, needed)
        if head:
            write_by(partial(save_file, head), staging / "head.safetensors", needed)


def head_of_its_own(model: PreTrainedModel | PeftModel) -> dict[str, Tensor]:
    """By name, the head of a model without an adapter that is its embedding; empty otherwise, and on a GPU.

    vLLM on a CPU is given a head of its own (`muster.vllm_needs.with_head_of_its_own`), which transformers
    does not write for such a model.
    """
    if isinstance(model, PeftModel) or torch.cuda.is_available():
        return {}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if not isinstance(head, nn.Module) or head.weight is not embedding.weight:
        return {}
    name = next(name for name, module in model.named_modules() if module is head)
    weight = head.weight
    assert isinstance(weight, Tensor)
    return {f"{name}.weight": weight.detach().contiguous()}
