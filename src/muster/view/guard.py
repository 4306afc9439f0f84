"""What every request must be and every answer carries.

A page in the same browser can send requests to a server on this machine (B78: DNS rebinding, cross-site
requests). So a request must name this server as its host, come from its own page where it says from where
it comes, and only read. An answer can't be framed, can't be taken for another type, and runs no script but
the page's own files.
"""

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MAX_TARGET_BYTES = 4_096
"""Of path and query together."""

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Lets requests of the page itself through, and signs every answer."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = LOOPBACK) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or passes on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self._refusal(scope)
        if refused is None:
            await self._app(scope, receive, signed)
        else:
            await PlainTextResponse(refused[1], status_code=refused[0])(scope, receive, signed)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason; None for a request that may pass."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "The inspector only reads: GET and HEAD are allowed."
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name_of(hosts[0]) not in self._hosts:
            return 421, "This host name is not the inspector's. Allowed: " + ", ".join(sorted(self._hosts))
        if _is_of_another_page(headers, hosts[0], scope["path"]):
            return 403, "Requests of other pages are refused."
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET_BYTES:
            return 414, f"The address is longer than {MAX_TARGET_BYTES} bytes."
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "A request carries no body."
        return None


def _is_of_another_page(headers: Headers, host: str, path: str) -> bool:
    """The browser says that another page sends this; a link to the page itself is fine."""
    own = (f"http://{host.lower()}", f"https://{host.lower()}")
    if any(origin.lower() not in own for origin in headers.getlist("origin")):
        return True
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and path != "/"


def _name_of(host: str) -> str:
    """The host without its port."""
    name, colon, port = host.lower().rpartition(":")
    return (
        name if colon and port.isdecimal() and (not name.count(":") or name.endswith("]")) else host.lower()
    )
