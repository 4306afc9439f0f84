"""JSON over HTTP to one server: connections are kept open, waits are bounded, faults told apart.

Free of torch, and of anything that is particular to what the server does.
"""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from muster.errors import EngineError
from muster.redaction import redacted

MAX_BYTES = 1_000_000_000
"""Of an answer; a longer one is refused."""
CONNECT_S = 10.0
"""Longest wait for a connection: a machine that is gone doesn't refuse one, it stays silent."""
_IDLE_S = 2.0
"""An idle connection is kept so long: vLLM closes its own after 5 s, and a call on a closed one fails."""
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})


class FaultError(EngineError):
    """A try that failed where another one, or another server, may do better."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class GoneError(FaultError):
    """Nobody is there: the connection was refused."""


class RefusedError(EngineError):
    """The server understood and said no; asking again would be answered alike."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Wire:
    """Connections to one server; any number of threads may call at once."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        self._key = key
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "https"
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path
        self._free: list[tuple[http.client.HTTPConnection, float]] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()

    def call(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, timeout_s: float
    ) -> object:
        """What the server answered: JSON as plain values, text as text; None where there is nothing.

        Raises FaultError where another try may help, and RefusedError where it would not.
        """
        deadline = time.monotonic() + timeout_s
        try:
            status, raw = self._exchange(method, path, body, deadline)
        except (OSError, http.client.HTTPException) as error:
            kind = GoneError if isinstance(error, ConnectionRefusedError) else FaultError
            raise kind(f"{self.url} {_said(error)} ({method} {path})") from None
        if status in _BUSY:
            raise FaultError(
                f"{self.url} answered {method} {path} with HTTP {status}: {self._start(raw)}", status
            )
        if status != http.client.OK:
            raise RefusedError(
                f"{self.url} refused {method} {path} with HTTP {status}: {self._start(raw)}", status
            )
        return self._parsed(raw, path)

    def close(self) -> None:
        """Closes what is open: calls that wait fail. A later call opens anew."""
        with self._lock:
            free, self._free = self._free, []
            busy = [connection.sock for connection in self._busy if connection.sock is not None]
        for connection, _ in free:
            connection.close()
        for sock in busy:
            # Wakes the thread that reads from it, which closes it.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _exchange(
        self, method: str, path: str, body: Mapping[str, object] | None, deadline: float
    ) -> tuple[int, bytes]:
        data = json.dumps(body).encode("ascii") if body is not None else None
        headers = {"Content-Type": "application/json"} if data is not None else {}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = self._take()
        is_kept = False
        try:
            if connection.sock is None:
                connection.timeout = min(CONNECT_S, _left(deadline))
                connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(_left(deadline))
            connection.request(method, self._prefix + path, body=data, headers=headers)
            response = connection.getresponse()
            raw = _read(response, connection, deadline)
            is_kept = not response.will_close
            return response.status, raw
        finally:
            self._put(connection, is_kept=is_kept)

    def _take(self) -> http.client.HTTPConnection:
        """A connection for one call: one that was kept, or a new one."""
        with self._lock:
            connection = None
            while self._free and connection is None:
                kept, since = self._free.pop()
                if time.monotonic() - since < _IDLE_S:
                    connection = kept
                else:
                    kept.close()
            connection = connection or self._new()
            self._busy.add(connection)
            return connection

    def _new(self) -> http.client.HTTPConnection:
        if self._is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, context=context)
        return http.client.HTTPConnection(self._host, self._port)

    def _put(self, connection: http.client.HTTPConnection, *, is_kept: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if is_kept:
                self._free.append((connection, time.monotonic()))
                return
            # Where one broke off the others have as well: each would fail a call of its own.
            useless, self._free = [connection, *(kept for kept, _ in self._free)], []
        for one in useless:
            one.close()

    def _parsed(self, raw: bytes, path: str) -> object:
        if not raw.strip():
            return None
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            pass
        if raw.lstrip()[:1] in (b"{", b"["):
            raise FaultError(f"{self.url} answered {path} with JSON that breaks off: {self._start(raw)}")
        return raw.decode("utf-8", "replace")

    def _start(self, raw: bytes) -> str:
        """What an answer says first, on one line and without secrets."""
        return redacted(" ".join(raw[:500].decode("utf-8", "replace").split()), [self._key])


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())


def _read(
    response: http.client.HTTPResponse, connection: http.client.HTTPConnection, deadline: float
) -> bytes:
    """All of the answer; a server that drips is cut off at the deadline."""
    chunks: list[bytes] = []
    size = 0
    while chunk := response.read1(1 << 20):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise OSError(f"sent more than {MAX_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(_left(deadline))
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    # Only then is the connection free for the next call: `read1` stops short of that.
    response.close()
    return b"".join(chunks)


def _said(error: Exception) -> str:
    """What became of the connection, in words."""
    match error:
        case ConnectionRefusedError():
            return "refuses connections: no server is running there"
        case TimeoutError():
            return "did not answer in time"
        case http.client.IncompleteRead() | http.client.RemoteDisconnected() | ConnectionError():
            return "broke the connection off"
        case _:
            return f"can't be asked: {type(error).__name__}: {error}"
