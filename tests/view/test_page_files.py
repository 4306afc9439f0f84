"""The page's own files: short, without markup from text, and the server that the command starts."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import view_runs
from muster.view.server import page_files

FILES = {name: body.decode() for name, (body, _) in page_files().items()}
MAX_LINES = 400


@pytest.mark.parametrize("name", FILES)
def test_files_stay_short(name: str):
    assert len(FILES[name].splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_no_script_makes_markup_or_code_of_text(name: str):
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|setHTML"
    assert re.search(forbidden, FILES[name]) is None
    assert FILES[name].startswith("// ")


def test_nothing_is_loaded_from_elsewhere():
    addresses = {
        found for text in FILES.values() for found in re.findall(r"https?://[\w./-]+|url\((?!#)", text)
    }
    assert addresses == {"http://www.w3.org/2000/svg"}


def test_every_file_that_is_served_is_named_in_the_page_or_imported():
    named = "\n".join(FILES.values())
    assert [name for name in FILES if name != "index.html" and name not in named] == []


def test_the_command_answers_until_it_is_interrupted(tmp_path: Path):
    view_runs.write_run(tmp_path / "runs" / "one", 1)
    command = [sys.executable, "-m", "muster", "view", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUTF8": "1"}
    ) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        address = re.findall(r"http://127\.0\.0\.1:\d+/", said)[0]
        with urllib.request.urlopen(f"{address}api/runs") as answer:
            assert b'"name":"one"' in answer.read()
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
