"""Sampling in process, on the training weights themselves.

A prompt's keys and values are computed once per group and shared; a finished row's place is taken by
the next rollout that waits; logprobs come from the same pass, at the same temperature.

Axes: R rows (one rollout each), V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from muster.engines.base import Sampling
from muster.engines.decoding import Decodable, Decoder, PlainDecoder, SharedPrefixDecoder
from muster.engines.sampler import Rollouts
from muster.errors import EngineError
from muster.records import Completion, Prompt


def _ignore(done: int, total: int) -> None:
    """Progress that nobody asked for."""


class LocalEngine:
    """Samples with a policy in this process, at most `max_rows` rollouts at a time.

    Without `load_weights`, or where it was given the policy's own, it samples on whatever weights the
    policy has now. Others that were loaded are an "old policy": it samples on these until the next load.
    """

    def __init__(
        self, policy: Decodable, *, max_rows: int = 64, progress: Callable[[int, int], None] = _ignore
    ) -> None:
        self.policy = policy
        self.max_rows = max_rows
        self.progress = progress
        self.version = 0
        self._weights: dict[str, Tensor] | None = None

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """`group_size` completions for each prompt; equal prompts, keys and weights give equal tokens."""
        if empty := [number for number, prompt in enumerate(prompts) if not prompt.ids]:
            raise EngineError(
                f"prompt {empty[0]} has no token, so there is nothing to predict a first one from. Start raw "
                "prompts with the model's first special token."
            )
        if not prompts:
            return []
        size = sampling.group_size
        keys = [(prompt.key, index) for prompt in prompts for index in range(size)]
        rollouts = Rollouts(keys, sampling, self.policy.tokenizer)
        with torch.no_grad(), self.policy.using(self._weights):
            kind = SharedPrefixDecoder if self.policy.packs else PlainDecoder
            seats = min(self.max_rows, len(keys))
            decoder = kind(self.policy, [prompt.ids for prompt in prompts], sampling, seats)
            self._sample(rollouts, decoder, len(keys))
        completions = rollouts.completions(self.version)
        return [completions[start : start + size] for start in range(0, len(completions), size)]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Samples with a copy of these weights from now on.

        The policy's own parameters are sampled on as they are: a copy would be a second model in memory.
        """
        given, own = dict(weights), dict(self.policy.trainable())
        is_own = all(tensor is own.get(name) for name, tensor in given.items())
        self._weights = None if is_own else {name: tensor.detach().clone() for name, tensor in given.items()}
        self.version = version

    def close(self) -> None:
        """Lets go of the copied weights."""
        self._weights = None

    def _sample(self, rollouts: Rollouts, decoder: Decoder, count: int) -> None:
        """Decodes until all rollouts are done; whoever finds no seat waits for one."""
        limit, size = rollouts.sampling.max_tokens, rollouts.sampling.group_size
        running: list[int] = []
        started = 0
        logits: Tensor | None = None
        while started < count or running:
            seats = decoder.num_seats - len(running) if decoder.joins or not running else 0
            if joining := list(range(started, min(started + seats, count))):
                first = decoder.join([rollout // size for rollout in joining])
                logits = first if logits is None else torch.cat([logits, first])
                running += joining
                started += len(joining)
            assert logits is not None
            ids = rollouts.step(logits, running)
            sampled = sum(len(rollouts.ids[rollout]) for rollout in running)
            self.progress((started - len(running)) * limit + sampled, count * limit)
            if leaving := [row for row, rollout in enumerate(running) if rollouts.is_done(rollout)]:
                order = decoder.leave(leaving)
                running = [running[row] for row in order]
                ids = ids[torch.tensor(order, dtype=torch.long, device=ids.device)]
            logits = decoder.step(ids) if running else None
        self.progress(count * limit, count * limit)
