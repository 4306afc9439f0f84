"""A picture's page from disk in Chromium: everything drawn, nothing from elsewhere, readable by all."""

import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from muster.cli import main
from muster.pictures import Bars, Chart, Curve, Picture, Table
from muster.view.picture_page import picture_page

HOSTILE = "</script><img src=x onerror=window.hurt=1>"
PICTURE = Picture(
    name="kl",
    title=f"Title {HOSTILE}",
    blocks=(
        f"A paragraph {HOSTILE}",
        Table(title="table", columns=("name", "value"), rows=((HOSTILE, 0.25), ("none", None))),
        Chart(
            title="chart",
            x_label="x",
            y_label="y",
            curves=tuple(Curve(name=f"c{n}", x=(1.0, 2.0, 3.0), y=(0.0, float(n), 2.0)) for n in range(10)),
            is_log=True,
        ),
        Bars(
            title="bars",
            value_label="p",
            labels=(f"'{HOSTILE}'", "' b'"),
            series={"before": (0.1, 0.2), "after": (0.3, None)},
        ),
    ),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "picture.html"
    path.write_text(picture_page(PICTURE), encoding="utf-8")
    return path


def opened(page: Page, file: Path) -> None:
    page.goto(file.as_uri())
    page.wait_for_selector(".block:last-child .main-svg")


def test_every_block_is_drawn_and_texts_stay_texts(page: Page, file: Path):
    opened(page, file)
    expect(page.locator("h1")).to_have_text(f"Title {HOSTILE}")
    expect(page.locator("tbody tr").first).to_contain_text("0.25")
    expect(page.locator(".keys-of-chart button")).to_have_count(10)
    expect(page.locator(".scatterlayer .trace")).to_have_count(10)
    expect(page.locator(".barlayer .trace")).to_have_count(2)
    assert page.evaluate("window.hurt") is None


def test_the_same_bars_have_two_patterns_and_lines_two_signs(page: Page, file: Path):
    opened(page, file)
    names = page.locator(".keys-of-chart button").all_inner_texts()
    signs = [name.strip().split()[0] for name in names]
    looks = page.locator(".keys-of-chart path").evaluate_all(
        "paths => paths.map(path => path.getAttribute('stroke') + path.getAttribute('stroke-dasharray'))"
    )
    assert len({sign + look for sign, look in zip(signs, looks, strict=True)}) == 10


def test_a_line_is_switched_off_by_its_key(page: Page, file: Path):
    opened(page, file)
    key = page.locator(".keys-of-chart button").nth(3)
    key.click()
    expect(page.locator(".keys-of-chart button").nth(3)).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".scatterlayer .trace")).to_have_count(9)


def test_dark_and_light_are_both_there(page: Page, file: Path):
    opened(page, file)
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.click("#theme-button")
    page.wait_for_function(f"getComputedStyle(document.documentElement).backgroundColor !== '{light}'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page: Page, file: Path, scheme):
    page.emulate_media(color_scheme=scheme)
    opened(page, file)
    found = Axe().run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []


def test_a_narrow_screen_has_no_sideways_scroll(page: Page, file: Path):
    page.set_viewport_size({"width": 380, "height": 800})
    opened(page, file)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_the_command_writes_a_page_that_draws(page: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "clip.html"
    assert main(["explain", "clip", "--html", str(file)]) == 0
    assert "opens without a network" in capsys.readouterr().err
    opened_at = file.as_uri()
    page.goto(opened_at)
    page.wait_for_selector(".main-svg")
    expect(page.locator("figure.block")).to_have_count(6)
    assert (
        re.search(r"https?://(?!www\.w3\.org)", file.read_text(encoding="utf-8").partition("<script>")[0])
        is None
    )
