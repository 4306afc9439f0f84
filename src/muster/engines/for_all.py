"""Sampling ahead on several ranks: the first one asks the servers for all of them.

Servers sample, whoever asks, and the first rank hands on what they answer. So there is one line of orders, as
in a run of one process, and which weights sample what does not depend on which rank is faster; what is
divided is grading, and the update.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Any, cast

from torch import Tensor

from muster.dist import decided_by_first, exchange, rank, together
from muster.engines.base import Sampling
from muster.engines.plain import as_groups, as_prompt, plain_groups, plain_prompt
from muster.engines.queued import Groups, Queued
from muster.records import Prompt


class ForAll:
    """An engine that every rank has and calls alike; the first one's takes orders while it works."""

    def __init__(self, queued: Queued | None) -> None:
        """`queued` is there on the first rank, and on no other."""
        self.queued = queued

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling) -> "Future[Groups]":
        """The completions to come, which the first rank alone can wait for."""
        return self.queued.submit(prompts, sampling) if self.queued is not None else Future()

    def wait(self, sampled: "Future[Groups]") -> Groups:
        """The completions, on the first rank; raises what sampling them raised."""
        assert self.queued is not None, "completions are with the first rank"
        return self.queued.wait(sampled)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> Groups:
        """`group_size` completions for each of this rank's prompts; all ranks call this."""
        asked = cast(list[list[dict[str, Any]]], exchange(lambda: [plain_prompt(one) for one in prompts]))
        everyone = [as_prompt(one) for one in chain.from_iterable(asked)]

        def work() -> object:
            assert self.queued is not None
            return plain_groups(self.queued.generate(everyone, sampling) if everyone else [])

        groups = as_groups(cast(list[list[dict[str, Any]]], decided_by_first(work)))
        start = sum(map(len, asked[: rank()]))
        return groups[start : start + len(prompts)]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Samples by these weights what is asked for from now on; all ranks call this, the first writes."""
        together(lambda: self.queued.load_weights(weights, version) if self.queued is not None else None)

    def close(self) -> None:
        """Gives up what is being sampled, and all that waits."""
        if self.queued is not None:
            self.queued.close()
