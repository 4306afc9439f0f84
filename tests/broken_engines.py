"""Engines that break the sync in one way each; all else is that of the engine inside."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from muster.engines.base import Engine
from muster.records import Completion


class Broken:
    """Changes the sampling, the loaded weights or the completions of the engine inside."""

    def __init__(
        self,
        inner: Engine,
        *,
        load: Callable[[str, Tensor, Tensor], Tensor] | None = None,
        sampling: dict[str, object] | None = None,
        change: Callable[[Completion], Completion] | None = None,
        from_version: int = 1,
    ) -> None:
        self.inner = inner
        self.load = load
        self.sampling = sampling or {}
        self.change = change or (lambda completion: completion)
        self.from_version = from_version
        self.first: dict[str, Tensor] = {}

    def generate(self, prompts, sampling):
        groups = self.inner.generate(prompts, replace(sampling, **self.sampling))
        return [[self.change(completion) for completion in group] for group in groups]

    def load_weights(self, weights, version):
        given = dict(weights)
        if not self.first:
            self.first = {name: tensor.detach().clone() for name, tensor in given.items()}
        if self.load is not None and version >= self.from_version:
            given = {
                name: self.load(name, tensor.detach(), self.first[name]) for name, tensor in given.items()
            }
        self.inner.load_weights(given.items(), version)

    def close(self):
        self.inner.close()


def kept_from_the_start(name: str, new: Tensor, first: Tensor) -> Tensor:
    """A load that reaches nothing."""
    return first


def all_but_the_first_layer(name: str, new: Tensor, first: Tensor) -> Tensor:
    """A load that forgets one layer."""
    return first if ".layers.0." in name else new


def twice_the_adapter(name: str, new: Tensor, first: Tensor) -> Tensor:
    """A sampler that scales the adapter by twice its alpha."""
    return 2 * new if "lora_B" in name else new


def shifted(completion: Completion) -> Completion:
    """Each token with the logprob of the one before it."""
    logprobs = completion.sampler_logprobs
    return replace(completion, sampler_logprobs=(logprobs[-1], *logprobs[:-1]))


def without_its_stop(completion: Completion) -> Completion:
    """The stop token cut off, as the text of a completion is."""
    if completion.is_truncated:
        return completion
    return replace(completion, ids=completion.ids[:-1], sampler_logprobs=completion.sampler_logprobs[:-1])


def one_after_its_stop(completion: Completion) -> Completion:
    """One token more than was asked for."""
    if completion.is_truncated or len(completion.ids) > 7:
        return completion
    return replace(
        completion, ids=(*completion.ids, 200), sampler_logprobs=(*completion.sampler_logprobs, -1.0)
    )


def of_the_version_before(completion: Completion) -> Completion:
    """What an engine says that took new weights under the old number."""
    return replace(completion, version=max(completion.version - 1, 0))
