"""What every engine does: token ids in; token ids, logprobs and finish reasons out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from muster.errors import EngineError
from muster.records import Completion, Prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How to sample; every field is set by us, a model's own generation defaults never win."""

    group_size: int
    """Completions per prompt."""
    max_tokens: int
    """Completion limit, in tokens, the stop token included."""
    temperature: float = 1.0
    """Divides the logits, in the sampler and in every logprob; 0 picks the likeliest token."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probability reaches this; 1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest; 0 drops none."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end a completion; the one that was sampled is part of it."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion; the tokens up to the end of the text are part of it."""
    ignore_eos: bool = False
    """Sample exactly `max_tokens` tokens: no stop is looked for."""


def untold(done: int, total: int) -> None:
    """Progress, in tokens, that nobody asked for."""


def refuse_empty(prompts: Sequence[Prompt]) -> None:
    """Raises EngineError for a prompt without tokens."""
    if empty := [number for number, prompt in enumerate(prompts) if not prompt.ids]:
        raise EngineError(
            f"prompt {empty[0]} has no token, so there is nothing to predict a first one from. Start raw "
            "prompts with the model's first special token."
        )


@runtime_checkable
class Engine(Protocol):
    """Samples completions; holds the weights of one version at a time."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """`group_size` completions for each prompt, in order."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Samples with these weights from now on; completions carry `version`."""
        ...

    def close(self) -> None:
        """Frees what the engine holds."""
        ...
