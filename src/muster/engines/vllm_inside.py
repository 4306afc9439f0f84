"""Sampling with vLLM in the process of the run: weights are handed over in memory, phases take turns.

On a GPU vLLM sleeps between phases: it gives its memory to the trainer and takes it back. Of an adapter's
base it keeps the weights on the CPU meanwhile; full weights it throws away, and is given those of the policy
when it wakes up.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from muster.engines.answers import LOADING, Label, read
from muster.engines.asking import Groups, cut, sampled_by, settings_of
from muster.engines.base import Sampling, untold
from muster.engines.shelf import Servable, Shelf, head_of_its_own
from muster.engines.vllm_core import Core, Request
from muster.engines.wire import FaultError
from muster.errors import EngineError
from muster.records import Prompt


class _Wanted(NamedTuple):
    """Weights to sample by."""

    label: Label
    weights: dict[str, Tensor]
    """Full ones, as they were handed over; empty for an adapter."""
    folder: Path | None = None
    """An adapter's, as peft writes it."""


class VllmInside:
    """Samples with the weights of the newest load; without one, with the policy's own.

    Full weights are not copied: as in `LocalEngine`, those of the policy are sampled by as they are when
    sampling begins.
    """

    def __init__(
        self,
        policy: Servable,
        core: Core,
        *,
        sleeps: bool,
        max_rows: int = 128,
        progress: Callable[[int, int], None] = untold,
    ) -> None:
        self.policy = policy
        self.max_rows = max_rows
        """Rollouts that are sampled side by side."""
        self.progress = progress
        self._core, self._sleeps = core, sleeps
        self._shelf = Shelf(None)
        self._wanted: _Wanted | None = None
        self._held: str | None = None
        """Name of the weights that vLLM holds; None where they are its start's, or none."""
        self._is_asleep = False
        self._rest()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> Groups:
        """`group_size` completions for each prompt, in order, all by the newest weights.

        Raises EngineError with what vLLM said where it fails, and where its answer can't be trusted.
        """
        if self._wanted is None:
            self.load_weights(self.policy.trainable(), 0)
        return sampled_by(self._ask_all, prompts, sampling)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Samples with these weights from now on; a version names its weights."""
        before = self._wanted
        if before is not None and before.label.version == version:
            return
        given, label = dict(weights), self._shelf.label(self.policy, version)
        if not label.is_adapter:
            self._wanted = _Wanted(label, given)
            return
        load, written = self._shelf.load, self._shelf.put(self.policy, given, version)
        self._wanted = _Wanted(label, {}, written.folder)
        if load is not None:
            self._shelf.drop(load)

    def close(self) -> None:
        """Ends vLLM, and removes what was written for it."""
        self._core.close()
        self._shelf.clear()

    def _ask_all(self, prompts: Sequence[Prompt], sampling: Sampling) -> Groups:
        label = self._wake()
        asks, limit = cut(prompts, sampling.group_size, 1), sampling.group_size * sampling.max_tokens
        answers = self._core.sample(
            [Request(ask.prompt.ids, settings_of(ask, sampling)) for ask in asks],
            lambda done: self.progress(done * limit, len(asks) * limit),
        )
        try:
            groups = [read(answer, ask, sampling, label) for answer, ask in zip(answers, asks, strict=True)]
        except FaultError as error:
            raise EngineError(f"what vLLM in this process answered can't be trained on: {error}.") from error
        self._rest()
        return groups

    def _wake(self) -> Label:
        """Has vLLM hold the newest weights, and the memory that it samples in."""
        assert self._wanted is not None
        if self._is_asleep:
            self._core.wake("weights")
        if self._held != self._wanted.label.name:
            self._bring(self._wanted)
        if self._is_asleep:
            self._core.wake("kv_cache")
        self._is_asleep = False
        return self._wanted.label

    def _bring(self, wanted: _Wanted) -> None:
        self._held = None
        if wanted.folder is not None:
            # Prompts are kept in the cache by the name of the adapter.
            self._core.load_adapter(wanted.label.name, wanted.folder)
        else:
            self._core.name_weights(LOADING)
            with torch.no_grad(), self.policy.using(wanted.weights):
                self._core.load(_by_checkpoint_names(self.policy))
            self._core.forget_prompts()
            self._core.name_weights(wanted.label.name)
        self._held = wanted.label.name

    def _rest(self) -> None:
        """Gives vLLM's memory to the trainer, where it can sleep."""
        if not self._sleeps:
            return
        if self._is_adapter():
            self._core.sleep(1)
        else:
            self._core.sleep(2)
            self._held = None
        self._is_asleep = True

    def _is_adapter(self) -> bool:
        return self._shelf.label(self.policy, 0).is_adapter


def _by_checkpoint_names(policy: Servable) -> Iterator[tuple[str, Tensor]]:
    """The full weights as transformers would write them, in memory."""
    weights = {name: param.detach() for name, param in policy.trainable()}
    yield from revert_weight_conversion(policy.model, weights).items()  # pyright: ignore[reportArgumentType]
    yield from head_of_its_own(policy.model).items()
