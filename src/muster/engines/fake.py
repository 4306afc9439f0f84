"""An engine that says what it is told: for tests, and for trying out rewards and recipes without a model."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, islice

from torch import Tensor

from muster.engines.base import Sampling
from muster.errors import EngineError
from muster.records import Completion, Prompt

Reply = str | Sequence[int]
"""A completion as text, to which a stop token is added, or as token ids, taken as they are."""

Script = Callable[[Prompt], Sequence[Reply]]
"""What to answer a prompt; fewer replies than `group_size` start over from the first."""


class FakeEngine:
    """Answers every prompt by a script, at the logprobs of a uniform distribution.

    Replies obey `max_tokens` and the stop ids like sampled ones. Ids that end before either are
    taken for stopped.
    """

    def __init__(
        self,
        script: Script | Mapping[tuple[int, ...], Sequence[Reply]],
        *,
        num_vocab: int,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        self.script = script
        self.num_vocab = num_vocab
        self.encode = encode
        """Turns replies that are text into ids, without special tokens."""
        self.version = 0
        self.weights: dict[str, Tensor] = {}
        """What was loaded last, copied."""
        self.calls: list[tuple[tuple[Prompt, ...], Sampling]] = []
        """What `generate` was asked for, in order."""
        self.is_closed = False

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """The script's replies, `group_size` for each prompt."""
        if self.is_closed:
            raise EngineError("the engine was closed, so it can't sample any more")
        self.calls.append((tuple(prompts), sampling))
        return [
            [self._completion(reply, sampling) for reply in islice(cycle(replies), sampling.group_size)]
            for replies in map(self._replies, prompts)
        ]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Keeps a copy for whoever wants to look at it; completions carry `version` from now on."""
        self.weights = {name: tensor.detach().clone() for name, tensor in weights}
        self.version = version

    def close(self) -> None:
        """Refuses to sample from now on."""
        self.is_closed = True

    def _replies(self, prompt: Prompt) -> Sequence[Reply]:
        replies = self.script(prompt) if callable(self.script) else self.script.get(prompt.ids, ())
        if not replies:
            raise EngineError(f"the script has no reply to prompt {list(prompt.ids)} ({prompt.key})")
        return replies

    def _completion(self, reply: Reply, sampling: Sampling) -> Completion:
        ids = self._ids(reply, sampling)
        ends = (
            [] if sampling.ignore_eos else [n for n, token in enumerate(ids, 1) if token in sampling.stop_ids]
        )
        kept = ids[: min([sampling.max_tokens, *ends])]
        if not kept:
            raise EngineError("the script's reply has no token; a completion has at least one")
        stopped = bool(ends) and ends[0] == len(kept)
        return Completion(
            ids=kept,
            sampler_logprobs=(-math.log(self.num_vocab),) * len(kept),
            finish_reason="stop" if stopped or len(kept) < sampling.max_tokens else "length",
            version=self.version,
        )

    def _ids(self, reply: Reply, sampling: Sampling) -> tuple[int, ...]:
        if not isinstance(reply, str):
            return tuple(reply)
        if self.encode is None:
            raise EngineError(f"the script replies {reply!r}; give the engine `encode` to turn text into ids")
        end = () if sampling.ignore_eos else sorted(sampling.stop_ids)[:1]
        return (*self.encode(reply), *end)
