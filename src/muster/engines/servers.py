"""vLLM servers: what each holds, how busy it is, and whether it answers; who is asked next."""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from muster.engines.answers import GENERATE, LOADING
from muster.engines.shelf import Load
from muster.engines.wire import FaultError, GoneError, RefusedError, Wire
from muster.errors import EngineError, EngineLostError

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 15.0
"""Between two tries of a server that is down; each pause is twice the one before."""
HEALTH_S = 10.0
WATCH_S = 5.0
"""Between two looks at a server that is taking weights."""
_NUM_RESETS = 20
_RESET_PAUSE_S = 0.1

START_IT = "Start it with `muster engine serve`, which sets what vLLM needs for that."


def is_dead(wire: Wire) -> bool:
    """Nobody listens any more, or the engine behind the calls is gone; a server that is slow is not dead."""
    try:
        wire.call("GET", "/health", timeout_s=HEALTH_S)
    except EngineError as error:
        return isinstance(error, GoneError) or getattr(error, "status", None) == 503
    return False


class Server:
    """One vLLM server."""

    def __init__(self, wire: Wire, timeout_s: float) -> None:
        self.url = wire.url
        self.held: str | None = None
        """Name of the weights that it was given last; None where it may have started anew since."""
        self.num_asked = 0
        """Requests that it is working on."""
        self.fault: str | None = None
        """Why it is down; None while it answers."""
        self.due = 0.0
        """When a server that is down is tried again."""
        self.pause_s = 0.0
        self._wire = wire
        self._timeout_s = timeout_s
        self._loading = threading.Lock()
        self._num_failed = 0
        """Tries to give it weights that failed."""

    def generate(self, body: Mapping[str, object]) -> object:
        """What it answers to a request for completions."""
        return self._wire.call("POST", GENERATE, body, timeout_s=self._timeout_s)

    def bring(self, load: Load) -> None:
        """Has it hold these weights; nothing is sent where it does.

        Raises FaultError where it can't be reached, and EngineError where it will not take them.
        """
        num_failed = self._num_failed
        with self._loading:
            if self.held == load.label.name:
                return
            if self._num_failed != num_failed:
                # Who waited here while another one found it silent need not wait for that again.
                raise FaultError(f"{self.url} could not be given its weights")
            before, self.held = self.held, None
            try:
                self._wire.call("GET", "/health", timeout_s=HEALTH_S)
                with self._watched():
                    self._take_over(load, before)
            except EngineError:
                self._num_failed += 1
                raise
            self.held = load.label.name

    def forget(self, load: Load) -> None:
        """Takes an adapter away again, where that can be done in a moment."""
        if load.label.is_adapter and self.held == load.label.name:
            self._unload(load.label.name, HEALTH_S)
        self.held = None

    def close(self) -> None:
        """Closes its connections."""
        self._wire.close()

    def _take_over(self, load: Load, before: str | None) -> None:
        try:
            if load.label.is_adapter:
                self._load_adapter(load, before)
            else:
                self._load_weights(load)
        except (RefusedError, FaultError) as error:
            # A rank that is too large, say, comes as an internal error; to ask again would not help. The
            # death of the engine behind the calls does too: then the server is no longer well.
            if isinstance(error, FaultError) and (error.status != 500 or is_dead(self._wire)):
                raise
            raise EngineError(_why_refused(error, load)) from None

    @contextmanager
    def _watched(self) -> Generator[None]:
        """Breaks off what waits for the server once it is dead.

        vLLM 0.32 never answers a load whose engine dies in the middle, and does not end before it has.
        """
        is_done = threading.Event()

        def watch() -> None:
            while not is_done.wait(WATCH_S):
                if is_dead(self._wire):
                    # Again and again: a call that connects only now is broken off by the next time.
                    self._wire.close()

        watcher = threading.Thread(target=watch, name="vllm-watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_done.set()
            watcher.join()

    def _load_adapter(self, load: Load, before: str | None) -> None:
        body = {"lora_name": load.label.name, "lora_path": str(load.folder)}
        try:
            self._post("/v1/load_lora_adapter", body)
        except RefusedError as error:
            if "already been loaded" not in str(error):
                raise
        if before is not None:
            self._unload(before, self._timeout_s)

    def _unload(self, name: str, timeout_s: float) -> None:
        try:
            self._wire.call("POST", "/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=timeout_s)
        except (RefusedError, FaultError):
            # It only takes room, and vLLM drops the one that was used longest ago.
            return

    def _load_weights(self, load: Load) -> None:
        self._post("/update_weight_version", {"new_version": LOADING})
        kwargs = {"weights_path": str(load.folder)}
        self._post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})
        # Keys and values of prompts that the weights before computed would be used again.
        for _ in range(_NUM_RESETS):
            done = self._post("/reset_prefix_cache", {})
            if not isinstance(done, Mapping) or done.get("success", True):
                break
            time.sleep(_RESET_PAUSE_S)
        else:
            raise FaultError(f"{self.url} does not empty its cache of prompts, which the old weights filled")
        self._post("/update_weight_version", {"new_version": load.label.name})

    def _post(self, path: str, body: Mapping[str, object]) -> object:
        return self._wire.call("POST", path, body, timeout_s=self._timeout_s)


def _why_refused(error: EngineError, load: Load) -> str:
    what = "the adapter" if load.label.is_adapter else "the weights"
    text = f"{what} of version {load.label.version} can't be loaded: {error}. "
    if getattr(error, "status", None) in (401, 403):
        return f"{text}Name the variable that holds the server's key in engine.options.key_env."
    return (
        f"{text}The server needs to see the folder {load.folder} by this path (engine.options.share), and "
        f"calls that replace weights, with room for the adapter's rank. {START_IT}"
    )


class Fleet:
    """Who is asked next: of the servers that answer, the one with the fewest requests.

    A server that fails is left alone for a while, twice as long each time, and then tried by one request.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        max_requests: int,
        patience_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers = servers
        self._max_requests, self._patience_s, self._now = max_requests, patience_s, now
        self._changed = threading.Condition()
        self._lost_at: float | None = None
        """Since when no server answers."""
        self._is_stopped = False

    def start(self) -> None:
        """Begins a call: what stopped the one before is past."""
        self._is_stopped = False
        self._lost_at = None
        for server in self.servers:
            server.due = 0.0

    def stop(self) -> None:
        """Has everyone who waits for a server give up."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def take(self) -> Server:
        """A server to ask, once one is free; raises EngineLostError where none answers for too long."""
        with self._changed:
            while True:
                if self._is_stopped:
                    raise EngineError("sampling was stopped")
                now = self._now()
                if (server := self._free(now)) is not None:
                    server.num_asked += 1
                    return server
                self._refuse_lost(now)
                dues = [server.due - now for server in self.servers if server.fault is not None]
                self._changed.wait(max(0.01, min([*(due for due in dues if due > 0), 1.0])))

    def answered(self, server: Server) -> None:
        """Gives a server back that did what it was asked for."""
        with self._changed:
            server.num_asked -= 1
            if server.held is not None:
                # Else it was asked before it failed: whether it is well is for one request alone to tell.
                server.fault, server.pause_s = None, 0.0
                self._lost_at = None
            self._changed.notify_all()

    def failed(self, server: Server, error: EngineError, holds: str | None = None) -> None:
        """Gives a server back that failed; it is left alone for a while, and then given its weights anew.

        Unless somebody else is about to have given them: then `holds` names them.
        """
        with self._changed:
            server.num_asked -= 1
            now = self._now()
            if server.due <= now:
                # Of many requests that fail at once, the first one counts.
                server.pause_s = min(MAX_PAUSE_S, max(FIRST_PAUSE_S, 2 * server.pause_s))
                server.due = now + server.pause_s
            server.fault = str(error)
            server.held = holds
            if self._lost_at is None and all(other.fault is not None for other in self.servers):
                self._lost_at = now
            self._changed.notify_all()

    def _free(self, now: float) -> Server | None:
        answering = [s for s in self.servers if s.fault is None and s.num_asked < self._max_requests]
        # A server that was down is tried by one request, before others follow.
        due = [s for s in self.servers if s.fault is not None and s.due <= now and s.num_asked == 0]
        return min([*due, *answering], key=lambda server: server.num_asked, default=None)

    def _refuse_lost(self, now: float) -> None:
        if self._lost_at is None or now - self._lost_at < self._patience_s:
            return
        told = "; ".join(server.fault or "" for server in self.servers)
        raise EngineLostError(
            f"no server has answered for {self._patience_s:g} s (engine.options.patience_s): {told}. "
            "Start one again, then resume the run."
        )
