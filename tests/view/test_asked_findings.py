"""The doctor's findings in the inspector: asked where training told none, and never a page that fails."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import view_runs
from muster.view.server import create_app

NAMES = ("plateau", "healthy-graded")
ARCHIVE = Path(__file__).parent.parent / "fixtures" / "broken_runs.tar.xz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recorded runs that nobody watched, one that was watched, and folders of others."""
    runs = tmp_path_factory.mktemp("asked") / "runs"
    with tarfile.open(ARCHIVE) as archive:
        wanted = [one for one in archive.getmembers() if one.name.split("/")[0] in NAMES]
        archive.extractall(runs, members=wanted, filter="data")
    view_runs.write_run(runs / "watched")
    view_runs.write_trl_run(runs / "trl", 24)
    view_runs.write_plain_metrics(runs / "plain")
    return runs


def asked(folder: Path, name: str) -> dict[str, list[Any]]:
    client = TestClient(create_app([folder]), base_url="http://localhost")
    runs = {run["name"]: run["id"] for run in client.get("/api/runs").json()["runs"]}
    answer = client.get(f"/api/runs/{runs[name]}/findings")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_run_that_nobody_watched_is_asked_now(folder: Path):
    answer = asked(folder, "plateau")
    (finding,) = answer["findings"]
    assert (finding["name"], finding["severity"]) == ("plateau", "finding")
    assert finding["evidence"][0]["step"] == 32
    assert answer["unasked"] == []
    assert asked(folder, "healthy-graded") == {"findings": [], "unasked": [], "unread": []}


def test_what_training_told_is_not_asked_again(folder: Path):
    assert asked(folder, "watched") == {"findings": [], "unasked": [], "unread": []}


def test_folders_of_others_are_asked_what_they_can_answer(folder: Path):
    trl, plain = asked(folder, "trl"), asked(folder, "plain")
    assert {"mode-collapse", "no-signal"} <= {finding["name"] for finding in trl["findings"]}
    assert "throughput-rot lacks seconds and tokens of each step" in trl["unasked"]
    assert plain["findings"] == []
    assert any("mode-collapse" in text for text in plain["unasked"])


@pytest.mark.parametrize(
    "lines",
    [
        ['{"step": "one", "reward": 1}'],
        ['{"reward": 1}'],
        ['{"step": 1, "reward": "high"}'],
        ['{"step": 1, "reward": {"a": 1}, "grad_norm": []}'],
        ["[1, 2]", "no json"],
    ],
)
def test_a_run_whose_numbers_are_none_gives_a_page_with_an_error(
    folder: Path, tmp_path: Path, lines: list[str]
):
    run = tmp_path / "runs" / "odd"
    shutil.copytree(folder / "plateau", run)
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines * 8))
    client = TestClient(create_app([tmp_path / "runs"]), base_url="http://localhost")
    (listed,) = client.get("/api/runs").json()["runs"]
    for path in ("", "/curves", "/findings", "/steps/3", "/steps/3/groups/0", "/steps/3/rollouts/0"):
        answer = client.get(f"/api/runs/{listed['id']}{path}")
        assert answer.headers["content-type"] == "application/json"
        assert answer.status_code == 200 or "error" in json.loads(answer.text)
