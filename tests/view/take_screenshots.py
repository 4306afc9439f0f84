"""Takes the pictures of the documentation anew, in the system's Chromium.

From the root `PYTHONPATH=tests python tests/view/take_screenshots.py` takes those of `docs/reading-a-run.md`,
of recorded runs; with a RUN of `examples/json_extraction.toml`, those of `docs/verbs/view.md`. They go to
`docs/images`, or `--to FOLDER`.
"""

import argparse
import contextlib
import shutil
import socket
import tarfile
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

import uvicorn
from playwright.sync_api import Page, ViewportSize, sync_playwright

from muster.store import TOKENIZER
from muster.view.server import create_app
from muster.view.sources import find_sources
from tiny import tiny_tokenizer

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests" / "fixtures" / "broken_runs.tar.xz"
IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 150_000


class Shot(NamedTuple):
    """One picture."""

    run: str
    """Its name; empty for the only one there is."""
    state: str
    """What is looked at, as the page's address has it."""
    needed: str
    """What must be there."""
    size: tuple[int, int] = (1280, 800)
    is_dark: bool = False
    token: int | None = None
    """Place of the token of the first rollout that is pointed at."""


VIEW = {
    "view-curves": Shot("", "", ".chart .drawing"),
    "view-samples": Shot("", "view=samples&step=3&group=0&colour=logprob", ".rollout .t", token=12),
    "view-pair": Shot("", "view=samples&step=3&group=0&show=pair&colour=entropy", ".t.other", is_dark=True),
}
READING = {
    "reading-healthy": Shot("healthy-extraction", "", ".chart .drawing", (1180, 800)),
    "reading-collapsed": Shot("mode-collapse", "", ".finding .badge", (1020, 640)),
    "reading-collapsed-samples": Shot(
        "mode-collapse", "view=samples&step=32&group=3", ".rollout .t", (1180, 660)
    ),
    "reading-hacked": Shot("reward-hacking", "", ".finding .badge", (1020, 640)),
    "reading-hacked-samples": Shot(
        "reward-hacking", "view=samples&step=32&group=0&colour=kl", ".rollout .t", (1180, 660)
    ),
    "reading-beside": Shot(
        "healthy-graded", "with={mode-collapse},{reward-hacking}", ".chart .drawing", (1180, 640)
    ),
}


def main(run: Path | None, folder: Path) -> None:
    """Writes the pictures of a run, or those of the recorded ones."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        take_all(run or recorded_runs(Path(place)), VIEW if run else READING, folder)


def recorded_runs(folder: Path) -> Path:
    """The recorded runs that are shown, with the tokenizer that all but one of them were trained with."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder / "all", filter="data")
    for name in {shot.run for shot in READING.values()}:
        shutil.copytree(folder / "all" / name, folder / "runs" / name)
        if name != "healthy-extraction":
            tokenizer = tiny_tokenizer().backend_tokenizer.to_str()
            (folder / "runs" / name / TOKENIZER).write_text(tokenizer, encoding="utf-8")
    return folder / "runs"


@contextlib.contextmanager
def served(runs: Path) -> Generator[str]:
    """The inspector's address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app([runs]), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True
    thread.join()
    listening.close()


def take_all(runs: Path, shots: Mapping[str, Shot], folder: Path) -> None:
    """Writes each of the pictures."""
    ids = {source.name: source.id for source in find_sources([runs])}
    with served(runs) as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, shot in shots.items():
            run, state = ids.get(shot.run) or next(iter(ids.values())), shot.state
            for other, number in ids.items():
                state = state.replace(f"{{{other}}}", number)
            size: ViewportSize = {"width": shot.size[0], "height": shot.size[1]}
            page = chromium.new_page(viewport=size, color_scheme="dark" if shot.is_dark else "light")
            page.goto(f"{address}#run={run}&{state}")
            page.wait_for_selector(shot.needed)
            take(page, folder / f"{name}.png", shot.token)
            page.close()
        chromium.close()


def take(page: Page, file: Path, token: int | None) -> None:
    """Writes the picture once all is drawn."""
    page.wait_for_timeout(2500)
    if token is not None:
        page.locator(".rollout").first.locator(".t").nth(token).hover()
        time.sleep(0.3)
    page.screenshot(path=file)
    size = file.stat().st_size
    print(f"{file}: {size / 1000:.0f} kB" + (f", above {MAX_BYTES / 1000:.0f}" if size > MAX_BYTES else ""))


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("run", type=Path, nargs="?")
    flags.add_argument("--to", type=Path, default=IMAGES)
    given = flags.parse_args()
    main(given.run, given.to)
