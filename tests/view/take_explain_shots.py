"""Takes the pictures of `docs/verbs/explain*.md` anew: `python tests/view/take_explain_shots.py [FOLDER]`.

The embedded model is asked; the pictures go to `docs/images`, or to FOLDER.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

from muster.cli import main as muster

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZE: ViewportSize = {"width": 1080, "height": 800}
SHOTS = {
    "explain-clip": ("light", "clip", 0),
    "explain-kl": ("dark", "kl", 1),
    "explain-next": ("light", "next-token", 0),
}
"""By name: light or dark, which picture, and which of its figures is at the top."""  # fmt: skip


def main(folder: Path) -> None:
    """Writes the pictures."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (scheme, picture, figure) in SHOTS.items():
            file = Path(place) / f"{name}.html"
            assert muster(["explain", picture, "--html", str(file)]) == 0
            page = chromium.new_page(viewport=SIZE, color_scheme="dark" if scheme == "dark" else "light")
            page.goto(file.as_uri())
            page.wait_for_selector("figure .main-svg")
            page.locator("figure.block").nth(figure).evaluate("figure => figure.scrollIntoView()")
            page.screenshot(path=folder / f"{name}.png")
            print(f"{name}: {(folder / f'{name}.png').stat().st_size / 1000:.0f} kB")
        chromium.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
