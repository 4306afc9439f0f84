"""A run of 5,000 steps of 128 rollouts: opened from its small files, never from its rollouts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

import view_runs
from muster.view.server import create_app
from patience import least_cpu_s
from view_runs import Served

NUM_STEPS = 5000


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all its files of rollouts, only the last can be opened."""
    runs = tmp_path_factory.mktemp("long") / "runs"
    view_runs.write_long_run(runs / "long", NUM_STEPS, view_runs.large_report(NUM_STEPS))
    return runs


def test_opening_it_costs_less_than_a_second_and_reads_no_other_steps(long_folder: Path):
    path = f"/api/runs/{Served('', long_folder).id_of('long')}"
    questions = {"info": "", "curves": "/curves", "listed": f"/steps/{NUM_STEPS}"}
    answers: dict[str, Any] = {}

    def opened() -> None:
        client = TestClient(create_app([long_folder]), base_url="http://localhost")
        client.get("/api/runs")
        answers.update({name: client.get(f"{path}{question}") for name, question in questions.items()})
        answers["unread"] = client.get(f"{path}/steps/17")

    assert least_cpu_s(opened, 1.0) < 1.0
    assert len(answers["info"].json()["sample_steps"]) == NUM_STEPS
    assert len(answers["curves"].json()["columns"]["reward"]) == NUM_STEPS
    listed = answers["listed"].json()
    assert listed["num_rollouts"] == 128
    assert listed["groups"][0]["seen"] == 39  # 1,000 prompts, 40,000 draws
    assert answers["unread"].status_code == 404


def test_a_look_for_news_costs_next_to_nothing(long_folder: Path):
    client = TestClient(create_app([long_folder]), base_url="http://localhost")
    run = client.get("/api/runs").json()["runs"][0]["id"]
    whole = client.get(f"/api/runs/{run}/curves").json()
    known = {"from": whole["end"], "generation": whole["generation"]}
    assert least_cpu_s(lambda: client.get(f"/api/runs/{run}/curves", params=known), 0.1) < 0.1
    assert len(client.get(f"/api/runs/{run}/curves", params=known).content) < 200


def test_the_page_draws_a_part_of_the_points_and_all_of_the_peaks(
    page: Page, long_folder: Path, serving: Callable[[Path], Served]
):
    page.goto(serving(long_folder).address)
    page.wait_for_selector(".chart[data-panel=reward] .drawing")
    line = page.locator(".chart[data-panel=reward] .line").get_attribute("d") or ""
    assert 200 < line.count("L") < 1000
    page.keyboard.press("s")
    expect(page.locator("tbody tr")).to_have_count(8)
    expect(page.locator("tbody tr").first).to_contain_text("39")
