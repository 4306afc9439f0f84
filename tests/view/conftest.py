"""Runs to look at, the server over them, and one browser for all tests."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from starlette.testclient import TestClient

import view_runs
from muster.view.server import create_app
from view_runs import Served

FIXTURES = Path(__file__).parent.parent / "fixtures"
HOSTILE_NAME = "<img src=x onerror=window.hurt='name'>"


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every kind: whole, recorded long ago, hostile, of TRL, and of metrics alone."""
    folder = tmp_path_factory.mktemp("viewed") / "runs"
    view_runs.write_run(folder / "good")
    shutil.copytree(FIXTURES / "run_v1", folder / "run_v1")
    view_runs.write_hostile_run(folder / HOSTILE_NAME)
    view_runs.write_trl_run(folder / "trl-out")
    view_runs.write_plain_metrics(folder / "plain")
    (folder / "no-run").mkdir()
    return folder


@pytest.fixture(scope="session")
def client(runs_folder: Path) -> TestClient:
    """The inspector without a socket."""
    return TestClient(create_app([runs_folder]), base_url="http://127.0.0.1:8765")


@pytest.fixture(scope="session")
def served(runs_folder: Path) -> Generator[Served]:
    """The inspector on a port of this machine."""
    yield from serve(runs_folder)


@pytest.fixture
def serving() -> Generator[Callable[[Path], Served]]:
    """Starts another inspector, over another folder; it outlives the page, which asks for news to its end."""
    with ExitStack() as started:
        yield lambda folder: started.enter_context(contextmanager(serve)(folder))


def serve(folder: Path) -> Generator[Served]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app([folder]), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}/", folder)
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    """The system's Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium as Debian packages it; .ci/run installs it")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser, serving: Callable[[Path], Served]) -> Generator[Page]:
    """A page; whatever fails on it, or wants something from elsewhere, fails the test."""
    del serving  # asked for so that it ends after this page
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    opened = context.new_page()
    trouble: list[str] = []
    opened.on("pageerror", lambda error: trouble.append(f"{error} {error.stack}"))
    opened.on("console", lambda said: trouble.append(said.text) if is_trouble(said) else None)
    opened.on("request", lambda request: None if is_own(request.url) else trouble.append(request.url))
    yield opened
    context.close()
    assert trouble == []


def is_trouble(said: ConsoleMessage) -> bool:
    """An error; an answer of 404 is one that the page shows to the person."""
    return said.type == "error" and "404 (Not Found)" not in said.text


def is_own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:"))


@pytest.fixture(scope="session")
def good(runs_folder: Path) -> str:
    """The id of the whole run."""
    return Served("", runs_folder).id_of("good")
