"""One JSON request to an HTTP endpoint, limited in time and size, and tried again where that may help."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import IO

from muster.errors import RewardError
from muster.redaction import redacted

MAX_BYTES = 4_000_000
"""Of a reply; a longer one is refused."""
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where to send, as whom, and for how long to try."""

    url: str
    key: str | None = field(default=None, repr=False)
    """Sent as a bearer token."""
    limit_s: float = 30.0
    """For all tries and the pauses between them."""
    retries: int = 2
    """Tries beyond the first, after a refused connection, a broken reply, or a status that says "later"."""


class _NotNowError(Exception):
    """The try failed in a way that may pass."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the key would go along."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def post(endpoint: Endpoint, body: Mapping[str, object]) -> Mapping[str, object]:
    """The object that the endpoint answers with; RewardError once it has failed for good."""
    deadline = time.monotonic() + endpoint.limit_s
    pause = _FIRST_PAUSE_S
    for attempt in range(endpoint.retries + 1):
        try:
            return _once(endpoint, body, deadline)
        except _NotNowError as error:
            wait = min(pause if error.wait_s is None else error.wait_s, _MAX_PAUSE_S)
            if attempt == endpoint.retries or time.monotonic() + wait >= deadline:
                raise RewardError(
                    f"{endpoint.url} failed {attempt + 1} times within {endpoint.limit_s:g} s: "
                    f"{redacted(str(error), [endpoint.key])}"
                ) from None
            time.sleep(wait)
            pause *= 2
    raise AssertionError("the last try returns or raises")


def _once(endpoint: Endpoint, body: Mapping[str, object], deadline: float) -> Mapping[str, object]:
    """One try; the errors that it chains hold no request, and so no key."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if endpoint.key is not None:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    # ASCII escapes carry any text, a lone surrogate too.
    data = json.dumps(body).encode("ascii")
    request = urllib.request.Request(endpoint.url, data=data, headers=headers, method="POST")
    opener = urllib.request.build_opener(_StayHere)
    try:
        with opener.open(request, timeout=max(0.01, deadline - time.monotonic())) as response:
            raw = _read(response, deadline)
    except urllib.error.HTTPError as error:
        with error:
            reason = f"HTTP {error.code}: {_start(error)}"
        if error.code in _BUSY:
            raise _NotNowError(reason, _wait_s(error.headers.get("Retry-After"))) from None
        raise RewardError(f"{endpoint.url} said {redacted(reason, [endpoint.key])}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _NotNowError(f"{type(error).__name__}: {error}") from None
    return _object(raw)


def _start(error: urllib.error.HTTPError) -> str:
    """What the endpoint says first about an error."""
    try:
        said = error.fp.read1(200) if isinstance(error.fp, http.client.HTTPResponse) else b""
    except (OSError, http.client.HTTPException):
        said = b""
    return said.decode("utf-8", "replace")


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """All of the reply; an endpoint that drips is cut off at the deadline."""
    chunks: list[bytes] = []
    size = 0
    while chunk := response.read1(65_536):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise _NotNowError(f"the reply is longer than {MAX_BYTES} bytes")
        if time.monotonic() > deadline:
            raise _NotNowError("the reply did not end in time")
    return b"".join(chunks)


def _object(raw: bytes) -> Mapping[str, object]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise _NotNowError(f"the reply is not JSON: {raw[:100]!r}") from None
    if not isinstance(value, dict):
        raise _NotNowError(f"the reply is not an object: {raw[:100]!r}")
    return value


def _wait_s(header: str | None) -> float | None:
    """Seconds that the endpoint asks to be left alone; None where it names none, or a date."""
    return float(header) if header is not None and header.isascii() and header.isdigit() else None
