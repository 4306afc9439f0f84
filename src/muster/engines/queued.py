"""Sampling beside the rest of a run: what is asked for waits in line, and is done on a thread of its own."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from muster.clock import Overlap
from muster.engines.base import Sampling
from muster.engines.shelf import Load
from muster.errors import EngineLostError
from muster.records import Completion, Prompt

Groups = list[list[Completion]]


@runtime_checkable
class Apart(Protocol):
    """What samples apart from the weights that are trained: on servers, or in another process."""

    progress: Callable[[int, int], None]

    def put(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Load:
        """Lays these weights ready; what is being sampled meanwhile goes on by its own."""
        ...

    def sample(self, load: Load, prompts: Sequence[Prompt], sampling: Sampling) -> Groups:
        """`group_size` completions for each prompt by these weights; called by one thread at a time."""
        ...

    def drop(self, load: Load) -> None:
        """Lets go of weights that nothing will be sampled by any more."""
        ...

    def close(self) -> None:
        """Frees what it holds; a call that is under way fails."""
        ...


class _Held(NamedTuple):
    """Weights that are, or may be, sampled by."""

    load: Load
    orders: "list[Future[Groups]]"
    """Those given by them."""


class Queued:
    """An engine that takes orders while it works: each is carried out by the weights of when it was given.

    In the order in which they were given, so that what is sampled, and by what, does not depend on who is
    faster. Orders and weights are given by one thread.
    """

    def __init__(self, apart: Apart, own: Callable[[], Iterable[tuple[str, Tensor]]]) -> None:
        """`own` gives the policy's weights, by which is sampled before any load."""
        self.apart = apart
        self.overlap = Overlap()
        """Seconds of sampling that nobody waited for."""
        self._own = own
        self._line = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._held: list[_Held] = []
        """The newest last."""
        self._lost: EngineLostError | None = None
        tell = apart.progress
        # Beside an update it is the update whose progress is shown.
        apart.progress = lambda done, total: tell(done, total) if self.overlap.is_awaited else None

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling) -> "Future[Groups]":
        """The completions to come, by the weights of now; `wait` waits for them."""
        if not self._held:
            self.load_weights(self._own(), 0)
        newest = self._held[-1]
        order = self._line.submit(self._work, newest.load, prompts, sampling)
        newest.orders.append(order)
        return order

    def wait(self, sampled: "Future[Groups]") -> Groups:
        """The completions; raises what sampling them raised."""
        with self.overlap.waiting():
            return sampled.result()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> Groups:
        """`group_size` completions for each prompt, once all that was asked for before is done."""
        return self.wait(self.submit(prompts, sampling))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """What is asked for from now on is sampled by these weights; a version names its weights."""
        if self._held and self._held[-1].load.label.version == version:
            return
        # First, so that no more copies lie beside each other than steps are ahead, and one.
        for done in [one for one in self._held if all(order.done() for order in one.orders)]:
            self._held.remove(done)
            self.apart.drop(done.load)
        self._held.append(_Held(self.apart.put(weights, version), []))

    def close(self) -> None:
        """Gives up what is being sampled, and all that waits."""
        self._line.shutdown(wait=False, cancel_futures=True)
        self.apart.close()
        self._line.shutdown(wait=True)

    def _work(self, load: Load, prompts: Sequence[Prompt], sampling: Sampling) -> Groups:
        try:
            if self._lost is not None:
                # Nobody waits again for what has been waited for long enough.
                raise EngineLostError(str(self._lost))
            with self.overlap.working():
                return self.apart.sample(load, prompts, sampling)
        except EngineLostError as error:
            self._lost = error
            raise
