"""Sampling on vLLM servers over HTTP: token ids in, token ids and logprobs out.

New weights go to a folder that trainer and servers both see; each server is told of them before it samples
again, and every completion says which weights sampled it. A request that fails is asked again, of another
server where there is one: the seed travels with it. Checked with vLLM 0.32.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial

from torch import Tensor

from muster.dist import is_first, rank, world_size
from muster.engines.answers import LoadingError, body_of, read
from muster.engines.asking import Ask, Groups, cut, sampled_by
from muster.engines.base import Sampling, untold
from muster.engines.options import VllmOptions
from muster.engines.publishing import publish
from muster.engines.servers import START_IT, Fleet, Server
from muster.engines.shelf import Load, Servable, Shelf
from muster.engines.wire import FaultError, RefusedError, Wire
from muster.errors import EngineError, EngineLostError
from muster.records import Completion, Prompt

MAX_TRIES = 6
"""Of one request, by servers that had taken its weights."""


class VllmEngine:
    """Samples on servers with the weights of the newest load; without one, with the policy's own."""

    def __init__(
        self,
        policy: Servable,
        options: VllmOptions,
        *,
        key: str | None = None,
        progress: Callable[[int, int], None] = untold,
        asks_for_all: bool = False,
    ) -> None:
        """`key` is the servers' API key. One that `asks_for_all` is the only one of all ranks' to ask."""
        self.policy = policy
        self.progress = progress
        self._shelf = Shelf(options.share)
        self._num_asking = 1 if asks_for_all else world_size()
        # A server is given so many requests by all ranks together, and each rank begins with another server.
        max_requests = max(1, options.max_requests // self._num_asking)
        first = rank() % len(options.urls)
        self._fleet = Fleet(
            [
                Server(Wire(url, key), options.timeout_s)
                for url in options.urls[first:] + options.urls[:first]
            ],
            max_requests=max_requests,
            patience_s=options.patience_s,
        )
        self._max_threads = max_requests * len(options.urls)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> Groups:
        """`group_size` completions for each prompt, in order, all by the newest weights.

        Raises EngineLostError where no server answers, and EngineError with what a server refused.
        """
        if self._shelf.load is None:
            self.load_weights(self.policy.trainable(), 0)
        assert self._shelf.load is not None
        return self.sample(self._shelf.load, prompts, sampling)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Writes the weights to where servers read them; each is told before it samples next.

        A version names its weights, so the one that is there already is not written again. All ranks that
        ask call this, and one of them writes.
        """
        before = self._shelf.load
        if before is None or before.label.version != version:
            self.put(weights, version)
            if before is not None:
                self.drop(before)

    def put(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Load:
        """Writes the weights beside those that are being sampled by."""
        if self._num_asking == 1:
            return self._shelf.put(self.policy, dict(weights), version)
        return publish(self._shelf, self._fleet.servers, self.policy, dict(weights), version)

    def drop(self, load: Load) -> None:
        """Removes weights that nothing will be sampled by any more."""
        if is_first():
            self._shelf.drop(load)

    def sample(self, load: Load, prompts: Sequence[Prompt], sampling: Sampling) -> Groups:
        """As `generate`, by weights that were written before."""
        return sampled_by(partial(self._ask_all, load), prompts, sampling)

    def close(self) -> None:
        """Takes back what it wrote and loaded; a call that is under way fails."""
        self._fleet.stop()
        if self._shelf.load is not None and is_first():
            for server in self._fleet.servers:
                server.forget(self._shelf.load)
        for server in self._fleet.servers:
            server.close()
        self._shelf.clear()

    def _ask_all(self, load: Load, prompts: Sequence[Prompt], sampling: Sampling) -> Groups:
        asks = cut(prompts, sampling.group_size, len(self._fleet.servers))
        total = len(prompts) * sampling.group_size * sampling.max_tokens
        groups: list[list[Completion | None]] = [[None] * sampling.group_size for _ in prompts]
        self._fleet.start()
        pool = ThreadPoolExecutor(min(len(asks), self._max_threads), thread_name_prefix="vllm")
        try:
            waiting = {pool.submit(self._ask, ask, sampling, load): ask for ask in asks}
            done = 0
            for future in as_completed(waiting):
                ask = waiting[future]
                groups[ask.place][ask.start : ask.start + ask.count] = future.result()
                done += ask.count * sampling.max_tokens
                self.progress(done, total)
        except BaseException:
            # Ctrl-C, or what one of them raised: the others need not end first.
            self._fleet.stop()
            for server in self._fleet.servers:
                server.close()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return [[completion for completion in group if completion is not None] for group in groups]

    def _ask(self, ask: Ask, sampling: Sampling, load: Load) -> list[Completion]:
        """Its completions, by whichever server gives them."""
        body = body_of(ask, sampling, load.label)
        tries = 0
        while True:
            server = self._fleet.take()
            has_weights = False
            try:
                server.bring(load)
                has_weights = True
                completions = read(server.generate(body), ask, sampling, load.label)
            except LoadingError as error:
                self._fleet.failed(server, error, holds=load.label.name)
            except FaultError as error:
                self._fleet.failed(server, error)
                tries += has_weights
                if tries == MAX_TRIES:
                    raise EngineLostError(
                        f"a request failed {tries} times, last at {server.url}: {error}. Look at the log of "
                        "that server; a run that is saved goes on with --resume."
                    ) from None
            except RefusedError as error:
                # A server that was started anew knows no adapter: it says so with a 404.
                self._fleet.failed(server, error)
                tries += 1
                if error.status != 404 or tries == MAX_TRIES:
                    raise EngineError(_why_refused(error)) from None
            except BaseException as error:
                self._fleet.failed(server, EngineError(f"{server.url}: {error}"))
                raise
            else:
                self._fleet.answered(server)
                return completions


def _why_refused(error: RefusedError) -> str:
    if error.status in (401, 403):
        return f"{error}. Name the variable that holds the server's key in engine.options.key_env."
    if error.status in (404, 405):
        return f"{error}. It has no calls for tokens in and tokens out. {START_IT}"
    return (
        f"{error}. The server was started for other lengths or fewer logprobs than the run needs "
        f"(model.max_tokens, sampling.top_k), or for another model. {START_IT}"
    )
