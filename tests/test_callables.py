import sys
from pathlib import Path

import pytest

from muster.callables import load_callable
from muster.errors import ConfigError


def refusal(spec: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_callable(spec)
    assert repr(spec) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def grader(tmp_path: Path) -> Path:
    path = tmp_path / "grader.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "limit = 3\n"
        "def score(completion): return 1.0\n"
        "@dataclass\n"
        "class Grader:\n"
        "    base: float = 2.0\n"
        "    def score(self, completion): return self.base\n"
        "grader = Grader()\n"
    )
    return path


def test_a_function_of_a_module_is_found():
    assert load_callable("math:sqrt")(9) == 3
    assert load_callable("os.path:basename")("a/b") == "b"


def test_a_function_of_a_file_is_found_and_so_is_a_method(grader: Path):
    assert load_callable(f"{grader}:score")("") == 1.0
    assert load_callable(f"{grader}:grader.score")("") == 2.0


def test_two_files_of_one_name_stay_apart(tmp_path: Path):
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "reward.py").write_text(f"def f(): return {value}\n")
    assert [load_callable(f"{tmp_path / folder / 'reward.py'}:f")() for folder in "ab"] == [1, 2]


def test_a_file_runs_once_while_it_is_unchanged(tmp_path: Path):
    path = tmp_path / "once.py"
    path.write_text("def f(): return 1\n")
    first = load_callable(f"{path}:f")
    assert load_callable(f"{path}:f") is first
    path.write_text("def f(): return 2\n")
    assert load_callable(f"{path}:f")() == 2


def test_a_module_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "only_here_module.py").write_text("def f(): return 5\n")
    assert load_callable("only_here_module:f")() == 5


@pytest.mark.parametrize("spec", ["score", "module:", ":f", ""])
def test_what_is_no_path_to_a_function_says_the_forms(spec: str):
    assert "Write `module:function` or `file.py:function`" in refusal(spec)


def test_each_thing_that_is_missing_is_named(grader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert "there is no module 'no_such_thing'" in refusal("no_such_thing:f")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "rewards.py").touch()
    assert "Then write sub/rewards.py" in refusal("sub/rewards:f")
    assert "has no 'scor'. Did you mean 'score'?" in refusal(f"{grader}:scor")
    assert "there is no file" in refusal(f"{tmp_path}/grade.py:score")
    assert "Did you mean 'grader.py'?" in refusal(f"{tmp_path}/grade.py:score")
    assert "is a class" in refusal(f"{grader}:Grader")
    assert "is int, not a function" in refusal(f"{grader}:limit")


def test_a_file_that_fails_while_it_runs_says_so_and_leaves_nothing_behind(tmp_path: Path):
    path = tmp_path / "broken.py"
    path.write_text("import no_such_dependency\n")
    before = set(sys.modules)
    assert "ModuleNotFoundError: No module named 'no_such_dependency'" in refusal(f"{path}:f")
    assert set(sys.modules) == before


def test_a_module_whose_own_import_fails_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_more.py").write_text("import no_such_dependency\n")
    assert "module needs_more can't be imported: No module named 'no_such_dependency'" in refusal(
        "needs_more:f"
    )
    (tmp_path / "raises.py").write_text("1 / 0\n")
    assert "ZeroDivisionError" in refusal("raises:f")
