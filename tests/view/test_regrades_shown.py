"""Regrades in the inspector: what it answers about them, and what a person sees."""

from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

import regrade_records
import view_runs
from muster.view.export import export_page
from muster.view.server import create_app
from view_runs import HOSTILE, Served


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a regrade, one with a regrade of hostile texts and one that is broken, and one without."""
    runs = tmp_path_factory.mktemp("with-regrades") / "runs"
    for name in ("good", "hostile", "none"):
        view_runs.write_run(runs / name)
    regrade_records.keep(runs / "good")
    regrade_records.keep(runs / "hostile", HOSTILE[0].replace("/", ""), said=HOSTILE[1] + HOSTILE[4])
    (runs / "hostile" / "regrades" / "torn.json").write_text('{"steps": [')
    (runs / "hostile" / "regrades" / "odd.json").write_text('{"steps": 5, "whole": [], "notes": {"a": 1}}')
    return runs


@pytest.fixture
def regrades(folder: Path, serving: Callable[[Path], Served]) -> Served:
    """The inspector over them."""
    return serving(folder)


def asked(folder: Path, run: str, path: str = "", status: int = 200):
    client = TestClient(create_app([folder]), base_url="http://127.0.0.1:8765")
    answer = client.get(f"/api/runs/{Served('', folder).id_of(run)}/regrades{path}")
    assert answer.status_code == status
    return answer.json()


def test_a_regrade_is_answered_as_columns_and_places(folder: Path):
    (listed,) = asked(folder, "good")["regrades"]
    assert listed["name"] == "stricter"
    found = asked(folder, "good", f"/{listed['id']}")
    assert found["columns"]["step"] == list(range(1, 9))
    assert found["columns"]["cosine"] == pytest.approx([1 - step / 10 for step in range(1, 9)])
    assert found["columns"]["after/score"] == pytest.approx([step / 10 for step in range(1, 9)])
    assert found["whole"]["before/clip_low"] == 0.03
    assert found["changed_most"][1] == {
        "step": 3, "group": 0, "index": 2, "why": "moody ValueError", "score_before": 0.25,
        "score_after": None, "advantage_before": -0.5, "advantage_after": 0.0,
    }  # fmt: skip
    rows = asked(folder, "good", f"/{listed['id']}/steps/3")["rollouts"]
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert asked(folder, "good", f"/{listed['id']}/steps/5")["rollouts"] == []
    assert asked(folder, "none") == {"regrades": []}


def test_a_request_names_no_file_and_broken_ones_are_said(folder: Path):
    for wanted in ("stricter", "stricter.json", "meta.json", "0" * 16):
        asked(folder, "good", f"/{wanted}", status=404)
    by_name = {one["name"]: one["id"] for one in asked(folder, "hostile")["regrades"]}
    assert "can't be read as a regrade" in asked(folder, "hostile", f"/{by_name['torn']}", 404)["error"]
    odd = asked(folder, "hostile", f"/{by_name['odd']}")
    assert (odd["columns"], odd["notes"], odd["whole"]["cosine"]) == ({}, [], None)


def open_at(page: Page, served: Served, state: str, run: str = "good") -> None:
    page.goto(f"{served.address}#run={served.id_of(run)}&{state}")
    page.wait_for_selector(".tabs")


def test_a_regrade_is_shown_from_its_table_to_its_rollouts(page: Page, regrades: Served):
    open_at(page, regrades, "view=curves")
    page.get_by_role("link", name="Regrades").click()
    table = page.locator("table.regrade").first
    expect(table).to_contain_text("Mean score")
    expect(table.locator("tr", has_text="Clipped low")).to_contain_text("3.0")
    page.wait_for_selector(".chart[data-panel=regrade-cosine] .drawing")
    expect(page.locator(".chart h3")).to_have_text(
        ["Mean score", "Groups mixed", "Agreement of coefficients", "Norm after / before"]
    )
    expect(page.locator(".limits")).to_contain_text("2 times: moody ValueError")
    page.get_by_role("link", name="step 3, group 0, #2").click()
    lines = page.locator(".rollout .regraded")
    expect(lines).to_have_text(
        [
            "regraded 0.875 \u00b7 A +1.25",
            "regraded 0.875 \u00b7 A +1.25",
            "regraded moody ValueError \u00b7 A 0",
        ]
    )


def test_a_run_without_a_regrade_says_how_to_make_one(page: Page, regrades: Served):
    open_at(page, regrades, "view=regrades", "none")
    expect(page.locator(".welcome")).to_contain_text("muster regrade none --recipe dr_grpo")


def test_hostile_regrades_stay_text(page: Page, regrades: Served):
    open_at(page, regrades, "view=regrades", "hostile")
    expect(page.locator(".limits")).to_contain_text("</script><script>window.hurt='script'</script>")
    expect(page.locator(".limits")).to_contain_text("\u27e8U+001B\u27e9[2J")
    page.wait_for_selector(".chart .drawing")
    names = page.locator("#regrade-field option").all_text_contents()
    page.select_option("#regrade-field", label=next(name for name in names if name == "torn"))
    expect(page.get_by_role("alert")).to_contain_text("can't be read as a regrade")
    page.select_option("#regrade-field", label="odd")
    expect(page.locator("table.regrade")).to_have_count(1)
    assert page.evaluate("window.hurt") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_about_regrades(page: Page, regrades: Served, scheme):
    page.emulate_media(color_scheme=scheme)
    open_at(page, regrades, "view=regrades")
    page.wait_for_selector(".chart[data-panel=regrade-norm] .drawing")
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []


def test_an_exported_page_carries_its_regrades(page: Page, folder: Path, tmp_path: Path):
    file = tmp_path / "page.html"
    file.write_text(export_page([folder / "good"], [range(3, 4)]).html, encoding="utf-8")
    page.goto(file.as_uri())
    page.wait_for_selector(".tabs")
    page.get_by_role("link", name="Regrades").click()
    page.get_by_role("link", name="step 3, group 0, #0").click()
    expect(page.locator(".rollout .regraded").first).to_contain_text("regraded 0.875")


def test_another_theme_recolours_the_curves_of_a_regrade(page: Page, regrades: Served):
    open_at(page, regrades, "view=regrades")
    line = page.locator(".chart[data-panel=regrade-norm] .line")
    before = line.get_attribute("stroke") or ""
    page.keyboard.press("t")
    expect(line).not_to_have_attribute("stroke", before)
