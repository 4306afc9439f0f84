"""Who may ask, for what, and what each answer carries (B75, B78, P27)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from muster.view.guard import CONTENT_POLICY
from muster.view.server import create_app


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8765", "localhost:1", "LOCALHOST", "[::1]:8765", "[::1]"]
)
def test_the_machine_itself_may_ask_by_any_of_its_names(client: TestClient, host: str):
    assert client.get("/api/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", "", "127.0.0.1@evil.example",
     "127.0.0.1:8765:80", "0.0.0.0", "localhost:port", "[::1].evil", "::1", "127.0.0.1,evil.example"],
)  # fmt: skip
def test_another_name_is_refused_so_that_dns_rebinding_fails(client: TestClient, host: str):
    for path in ("/", "/static/main.js", "/api/runs"):
        assert client.get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:9", "http://127.0.0.1:8765.evil.example", "file://"],
)
def test_requests_of_other_pages_are_refused(client: TestClient, origin: str):
    assert client.get("/api/runs", headers={"origin": origin}).status_code == 403


def test_the_page_itself_and_links_to_it_are_let_through(client: TestClient):
    own = {"origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin"}
    assert client.get("/api/runs", headers=own).status_code == 200
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200
    assert client.get("/api/runs", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.get("/static/main.js", headers={"sec-fetch-site": "same-site"}).status_code == 403


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"]
)
def test_only_reading_is_allowed(client: TestClient, method: str):
    assert client.request(method, "/api/runs").status_code == 405


def test_a_request_has_no_body_and_a_short_address(client: TestClient):
    assert client.request("GET", "/api/runs", content=b"x").status_code == 413
    assert client.get("/api/runs?text=" + "x" * 5000).status_code == 414
    assert client.get("/" + "x" * 5000).status_code == 414


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/runs", "/nothing", "/api/runs/none"])
def test_every_answer_is_signed(client: TestClient, path: str):
    for headers in ({}, {"host": "evil.example"}):
        answer = client.get(path, headers=headers)
        assert answer.headers["content-security-policy"] == CONTENT_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers


def test_scripts_come_from_files_of_the_page_alone(client: TestClient):
    directives = {
        name: value for name, _, value in (p.strip().partition(" ") for p in CONTENT_POLICY.split(";"))
    }
    assert directives["script-src"] == "'self'"
    assert directives["default-src"] == directives["frame-ancestors"] == "'none'"
    page = client.get("/").text
    assert "<script>" not in page
    assert " onclick" not in page
    assert "https://" not in page


OUTSIDE = [
    "/static/../server.py",
    "/static/..%2fserver.py",
    "/static/%2e%2e/server.py",
    "/static/..\\server.py",
    "/static/%5c..%5cserver.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/main.js%00.html",
    "/static/",
    "/static",
    "/api/runs/../../etc/passwd",
    "/api/runs/%2e%2e",
    "/api/runs/good",
    "/api/runs/%00",
    "/api/runs/" + "a" * 3000,
    "/api/runs/good/steps/..%2f..%2fmeta.json",
    "//etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/api/runs/{id}/steps/1/../../../x",
    "/api/runs/{id}/steps/-1",
    "/api/runs/{id}/steps/1e3",
    "/api/runs/{id}/steps/1.parquet",
    "/api/runs/{id}/steps/99999999999999999999999999",
    "/api/runs/{id}/steps/0x1",
    "/api/runs/{id}/steps/1/groups/99",
    "/api/runs/{id}/steps/1/rollouts/9999",
    "/api/runs/{id}/config.toml",
    "/api/runs/{id}/steps/٣",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_reaches_a_file_by_its_name(client: TestClient, path: str, good: str):
    answer = client.get(path.replace("{id}", good))
    assert answer.status_code == 404
    assert "root:" not in answer.text
    assert "import" not in answer.text


@given(
    path=st.text(max_size=60),
    query=st.dictionaries(st.sampled_from(["text", "from", "held_out", "x"]), st.text(max_size=30)),
)
def test_any_path_is_answered_and_none_breaks_the_server(
    client: TestClient, path: str, query: dict[str, str]
):
    runs = client.get("/api/runs").json()["runs"]
    for before in ("/", "/static/", "/api/runs/", f"/api/runs/{runs[0]['id']}/"):
        try:
            answer = client.get(before + path.encode("utf-8", "replace").decode(), params=query)
        except Exception as error:
            # What the client itself refuses to send never arrives.
            assert type(error).__name__ in ("InvalidURL", "LocalProtocolError"), error  # noqa: PT017
            continue
        assert answer.status_code in (200, 404, 405, 414), answer.text


def test_other_hosts_are_allowed_only_where_they_are_named(tmp_path):
    app = create_app([tmp_path], hosts=["localhost", "box.lan"])
    named = TestClient(app, base_url="http://box.lan:1")
    assert named.get("/api/runs").json() == {"runs": []}
    assert named.get("/api/runs", headers={"host": "other.lan"}).status_code == 421
