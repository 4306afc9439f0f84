"""Takes the pictures of the documentation anew: `python tests/view/take_screenshots.py RUN [FOLDER]`.

RUN is a run of `examples/json_extraction.toml`; the pictures go to `docs/images`, or to FOLDER.
"""

import shutil
import socket
import sys
import threading
import time
from pathlib import Path

import uvicorn
from playwright.sync_api import Page, ViewportSize, sync_playwright

from muster.view.server import create_app
from muster.view.sources import find_sources

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZE: ViewportSize = {"width": 1280, "height": 800}
SHOTS = {
    "view-curves": ("light", "", ".chart .main-svg"),
    "view-samples": ("light", "view=samples&step=3&group=0&colour=logprob", ".rollout .t"),
    "view-pair": ("dark", "view=samples&step=3&group=0&show=pair&colour=entropy", ".t.other"),
}
"""By name: light or dark, what is looked at, and what must be there."""


def main(run: Path, folder: Path) -> None:
    """Writes a picture of each view."""
    (source,) = find_sources([run])
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app([run]), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (scheme, state, needed) in SHOTS.items():
            page = chromium.new_page(viewport=SIZE, color_scheme="dark" if scheme == "dark" else "light")
            page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/#run={source.id}&{state}")
            page.wait_for_selector(needed)
            take(page, folder / f"{name}.png", at_token=name == "view-samples")
        chromium.close()
    server.should_exit = True
    thread.join()
    listening.close()


def take(page: Page, file: Path, *, at_token: bool) -> None:
    """Writes the picture once all is drawn."""
    page.wait_for_timeout(2500)
    if at_token:
        page.locator(".rollout").first.locator(".t").nth(12).hover()
        time.sleep(0.3)
    page.screenshot(path=file)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else IMAGES)
