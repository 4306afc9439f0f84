"""A hub on localhost that speaks what a push needs: make a repository, look at it, ask how to send, commit.

It answers as asked: `script` maps a word in the path to status codes to give before it behaves.
"""

import base64
import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub:
    """What was made and committed, and every request that came."""

    def __init__(self, script: dict[str, list[int]] | None = None) -> None:
        self.script = script or {}
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()
        self.complaints: list[dict[str, str]] = []
        """About the front matter of a card."""
        self.url = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        for word, codes in self.script.items():
            if word in path and codes:
                # A rude hub: it repeats what it was told.
                return codes.pop(0), {"error": f"no luck with {sorted(map(str, self.tokens))}"}
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return (400 if self.complaints else 200), {"errors": self.complaints, "warnings": []}
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(preupload|commit|revision)/main)?", path)
        if found is None or found[1] not in self.repos:
            return 404, {"error": f"unknown {method} {path}"}
        if found[2] == "preupload":
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
            return 200, {"files": modes}
        return self.commit(found[1], body) if found[2] == "commit" else self.look(found[1])

    def look(self, name: str) -> tuple[int, object]:
        siblings = [{"rfilename": file} for file in self.repos[name]]
        return 200, {"id": name, "private": self.private[name], "siblings": siblings, "sha": "0" * 40}

    def create(self, asked) -> tuple[int, object]:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.repos:
            return 409, {"error": "You already created this model repo"}
        self.repos[name] = {".gitattributes": b""}
        self.private[name] = asked.get("visibility") == "private" or bool(asked.get("private"))
        return 200, {"url": f"{self.url}/{name}"}

    def commit(self, name: str, body: bytes) -> tuple[int, object]:
        lines = [json.loads(line) for line in body.splitlines()]
        for line in lines:
            if line["key"] == "file":
                value = line["value"]
                self.repos[name][value["path"]] = base64.b64decode(value["content"])
        oid = "0" * 40
        return 200, {"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{name}/commit/{oid}"}


@contextmanager
def fake_hub(script: dict[str, list[int]] | None = None) -> Generator[FakeHub]:
    """The hub, answering until the block ends."""
    hub = FakeHub(script)

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            hub.tokens.add(self.headers.get("Authorization"))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            hub.requests.append((self.command, path))
            status, content = hub.answer(self.command, path, body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = handle_any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
