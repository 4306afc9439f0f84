"""The page in one file: opened from disk, with the same views, and nothing in it runs but its own scripts."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import view_runs
from muster.cli import main
from muster.cli.inspector import parse_steps
from muster.errors import ConfigError
from muster.view.bundling import one_script
from muster.view.export import export_page
from muster.view.server import page_files


def test_steps_are_numbers_and_ranges():
    assert parse_steps("1-5,16") == [range(1, 6), range(16, 17)]
    assert parse_steps(" 3 ") == [range(3, 4)]
    for wrong in ("", "a", "1-", "5-1", "1..3", "-4", "1,,2"):
        with pytest.raises(ConfigError, match="--steps"):
            parse_steps(wrong)


def test_every_module_goes_in_after_those_it_imports():
    files = {name: body.decode() for name, (body, _) in page_files().items()}
    script = one_script(files, "main.js")
    names = re.findall(r'^modules\["([\w.]+)"\]', script, re.MULTILINE)
    assert sorted(names) == sorted(name for name in files if name.endswith(".js"))
    assert re.search(r"^(import|export) ", script, re.MULTILINE) is None
    for name in names:
        for needed in re.findall(
            r'= modules\["([\w.]+)"\];', script.split(f'modules["{name}"] = ')[1].split("\nmodules[")[0]
        ):
            assert names.index(needed) < names.index(name)


def test_the_command_writes_a_page_that_opens_from_disk(
    page: Page, runs_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "out.html"
    assert (
        main(
            [
                "view",
                str(runs_folder / "good"),
                str(runs_folder / "run_v1"),
                "--export",
                str(file),
                "--steps",
                "2-3,8",
            ]
        )
        == 0
    )
    assert "5 steps with samples" in capsys.readouterr().out
    page.goto(file.as_uri())
    page.wait_for_selector(".chart .drawing")
    expect(page.locator("#run-list .run")).to_have_count(2)
    page.goto(file.as_uri() + f"#{page.url.split('#')[1].split('&')[0]}&view=samples&step=3")
    page.keyboard.press("]")
    page.wait_for_selector(".rollout .t")
    page.fill("#text-field", "twelve")
    page.wait_for_timeout(300)
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    expect(page.locator(".rollout")).to_have_count(2)


def test_hostile_text_in_an_exported_page_stays_text(page: Page, tmp_path: Path):
    folder = view_runs.write_hostile_run(tmp_path / "runs" / "bad")
    (tmp_path / "out.html").write_text(export_page([folder], None).html)
    page.goto((tmp_path / "out.html").as_uri())
    page.wait_for_selector(".chart .drawing")
    page.keyboard.press("s")
    page.wait_for_selector(".rollout .t")
    assert page.evaluate("window.hurt") is None
    assert page.locator("img, iframe").count() == 0
    assert page.locator("script").count() == 2


def test_what_cannot_be_exported_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    view_runs.write_run(tmp_path / "runs" / "one", 2)
    assert main(["view", "one", "--export", "out.html", "--steps", "7"]) == 2
    assert "There are: 1 to 2" in capsys.readouterr().err
    assert main(["view", "one", "--export", "nowhere/out.html"]) == 2
    assert main(["view", "none", "--export", "out.html"]) == 2
    assert "Runs in runs: one." in capsys.readouterr().err
    assert main(["view", "one", "--steps", "1"]) == 2
    assert main(["view", "--port", "99999"]) == 2
    assert "allowed: 0 to 65535" in capsys.readouterr().err
