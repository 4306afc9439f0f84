"""Sampling in process, on the training weights themselves.

A prompt's keys and values are computed once per group and shared; a finished row's place is taken by
the next rollout that waits; logprobs come from the same pass, at the same temperature.

Axes: R rows (one rollout each), V vocabulary.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from muster.devices import computing_in
from muster.engines.base import Sampling, refuse_empty, untold
from muster.engines.decoding import Decodable, Decoder, PlainDecoder, SharedPrefixDecoder
from muster.engines.fused import FusedBackbone, is_known
from muster.engines.products import Choice, choose, linear_layers, replaced
from muster.engines.sampler import Rollouts
from muster.memory import until_it_fits
from muster.records import Completion, Prompt

FUSED_TOLERANCE = 1e-4
"""Nats by which the short way of known families may differ from transformers' modules."""
NUM_COMPARED = 20
"""Likeliest tokens at each place, whose logprobs are compared: those that are mostly sampled."""
TEXTS = ("The river rose in the night, and by morning", "Two and three make")
"""What they are compared on. On odd sequences of tokens any two ways to compute differ by rounding alone."""


class LocalEngine:
    """Samples with a policy in this process, at most `max_rows` rollouts at a time.

    Without `load_weights`, or where it was given the policy's own, it samples on whatever weights the
    policy has now. Others that were loaded are an "old policy": it samples on these until the next load.
    """

    def __init__(
        self,
        policy: Decodable,
        *,
        max_rows: int = 64,
        progress: Callable[[int, int], None] = untold,
        choice: Choice | None = None,
    ) -> None:
        self.policy = policy
        self.max_rows = max_rows
        self.progress = progress
        self.choice = choice or Choice()
        """How products are computed; `tune` measures what is fastest here."""
        self.version = 0
        self._weights: dict[str, Tensor] | None = None

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """`group_size` completions for each prompt; equal prompts, keys and weights give equal tokens.

        Where ranks divide the weights, each of them calls, be it without a prompt.
        """
        with self._weights_at_hand():
            return until_it_fits(
                lambda: self._sampled(prompts, sampling),
                lambda: self._halve(len(prompts) * sampling.group_size),
            )

    def _halve(self, num_rollouts: int) -> bool:
        """Samples half as many of these side by side from now on; False where that is one."""
        rows = min(self.max_rows, num_rollouts)
        if rows > 1:
            self.max_rows = rows // 2
        return rows > 1

    def _sampled(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        refuse_empty(prompts)
        if not prompts:
            return []
        size = sampling.group_size
        keys = [(prompt.stream, index) for prompt in prompts for index in range(size)]
        rollouts = Rollouts(keys, sampling, self.policy.tokenizer)
        seats = min(self.max_rows, len(keys))
        ids = [prompt.ids for prompt in prompts]
        with self._decoder(ids, sampling, seats) as decoder:
            self._sample(rollouts, decoder, len(keys))
        completions = rollouts.completions(self.version)
        return [completions[start : start + size] for start in range(0, len(completions), size)]

    def tune(self, num_rows: int, kind: str | None = None) -> None:
        """Measures which products are fastest at so many rows, and checks the short way of known families.

        Both take a moment, on the policy's own weights; `kind` names the products instead. What was chosen
        is in `choice`: set it to that of another engine to sample as that one does, to the last bit.
        """
        self.choice = Choice()
        if self.policy.autocast is not None:
            return
        with self._weights_at_hand():
            layers = linear_layers(self.policy.backbone, self.policy.head)
            choice = Choice(kind, kind) if kind else choose(layers, min(num_rows, self.max_rows))
            if self.policy.packs and is_known(self.policy.backbone):
                choice = choice._replace(is_fused=self._fused_difference() <= FUSED_TOLERANCE)
        self.choice = choice

    def _fused_difference(self) -> float:
        """By how much the logprobs of the likeliest tokens differ at most from the modules' own."""
        sampling = Sampling(group_size=2, max_tokens=2)
        encoded = (self.policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS)
        prompts = [tuple(ids) for ids in encoded]
        logprobs: list[Tensor] = []
        # The usual products on both sides, so that the difference is that of the two ways alone.
        for self.choice in (Choice(), Choice(is_fused=True)):
            with self._decoder(prompts, sampling, 4) as decoder:
                first = decoder.join([0, 0, 1, 1])
                logprobs.append(torch.cat([first, decoder.step(first.argmax(dim=1))]).log_softmax(dim=1))
        likeliest = logprobs[0].topk(min(NUM_COMPARED, logprobs[0].shape[1]), dim=1).indices
        return float((logprobs[0] - logprobs[1]).gather(1, likeliest).abs().max())

    @contextmanager
    def _weights_at_hand(self) -> Generator[None]:
        """The weights that are sampled are the policy's, and all of them are here."""
        with torch.no_grad(), self.policy.using(self._weights), self.policy.whole():
            yield

    @contextmanager
    def _decoder(
        self, prompts: Sequence[tuple[int, ...]], sampling: Sampling, seats: int
    ) -> Generator[Decoder]:
        """What decodes these prompts, by the products chosen."""
        policy, kind = self.policy, self.choice.of(sampling.max_tokens)
        is_fused = policy.packs and self.choice.is_fused
        swapped = linear_layers(policy.head) if is_fused else linear_layers(policy.backbone, policy.head)
        # Entered once a call, so that weights are cast once, not at every token.
        with replaced(swapped, kind), computing_in(policy.autocast, policy.device):
            if not policy.packs:
                yield PlainDecoder(policy, prompts, sampling, seats)
                return
            forward = FusedBackbone(policy.backbone, kind) if is_fused else None
            yield SharedPrefixDecoder(policy, prompts, sampling, seats, forward)

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
        size, started = rollouts.sampling.group_size, 0
        running: list[int] = []
        ids = torch.empty(0, dtype=torch.long, device=self.policy.device)
        while started < count or running:
            seats = decoder.num_seats - len(running) if decoder.joins or not running else 0
            if joining := list(range(started, min(started + seats, count))):
                logits = decoder.join([rollout // size for rollout in joining])
                started += len(joining)
                running += joining
                ids = torch.cat([ids, rollouts.step(logits, joining)])
            else:
                ids = rollouts.step(decoder.step(ids), running)
            if leaving := [row for row, rollout in enumerate(running) if rollouts.is_done(rollout)]:
                order = decoder.leave(leaving)
                running = [running[row] for row in order]
                ids = ids[torch.tensor(order, dtype=torch.long, device=ids.device)]
            self._report(rollouts, running, started, count)

    def _report(self, rollouts: Rollouts, running: Sequence[int], started: int, count: int) -> None:
        """Tells the progress, in tokens; a rollout that is done counts as if it had reached its limit."""
        limit = rollouts.sampling.max_tokens
        sampled = sum(len(rollouts.ids[rollout]) for rollout in running)
        self.progress((started - len(running)) * limit + sampled, count * limit)
