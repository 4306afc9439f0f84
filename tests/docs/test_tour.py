"""The tour: its code runs, and what is stored with it is small and says nothing of where it was made."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"
CELLS: list[dict[str, Any]] = json.loads(TOUR.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
SMALL = {"STEPS": 2, "GROUP_SIZE": 6}
"""What the cell of parameters is set to here, beside the model."""


def test_the_tours_code_runs(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "tour"}
    for place, cell in enumerate(CODE):
        exec(compile("".join(cell["source"]), f"cell {place}", "exec"), namespace)
        if "parameters" in cell["metadata"].get("tags", ()):
            assert namespace.keys() >= {"MODEL", *SMALL}
            namespace |= {"MODEL": str(tiny_folder), **SMALL}
    free, held = namespace["free"], namespace["held"]
    assert (free.steps, held.steps) == ([1, 2], [1, 2])
    assert free.folder == tmp_path / "runs" / "tour" / "free"
    assert held.config["algo"]["kl_coef"] > 0


def test_every_cell_that_shows_something_is_stored_with_what_it_showed():
    silent = [cell for cell in CODE if not cell["outputs"]]
    # Parameters, and what only defines or reads something; what the doctor says may be nothing.
    assert len(silent) <= 3, ["".join(cell["source"]) for cell in silent]
    assert all(cell["execution_count"] == place for place, cell in enumerate(CODE, start=1))
    shown = {kind for cell in CODE for output in cell["outputs"] for kind in output.get("data", ())}
    assert shown == {"text/plain", "text/html", "image/svg+xml", "application/vnd.plotly.v1+json"}
    assert not [o for cell in CODE for o in cell["outputs"] if o.get("name") == "stderr"]


def test_the_stored_tour_is_small_and_names_no_machine():
    text = TOUR.read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    # A path of a machine, after a quote or a blank: closing tags and dates have no such start.
    assert (
        re.findall(r"(?<=[\s'\"(=])(?:/|[A-Z]:\\\\)(?:home|root|tmp|usr|work|var|Users|opt|mnt)\b", text)
        == []
    )
    assert "<script" not in text
    addresses = set(re.findall(r"https?://[^\s\"\\<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
