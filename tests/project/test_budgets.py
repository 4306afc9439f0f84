"""What the code may grow to, what it must never contain, and what a start may cost."""

import ast
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType

import pytest
from pydantic import BaseModel

import muster
from muster.config import Config

SOURCE = Path(muster.__file__).parent
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
ROOT = Path(__file__).parents[2]
BESIDE = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").glob("*.py"), *(ROOT / "examples").rglob("*.py")]
"""What is not the package is as short as what is."""
ALL_TREES = {**TREES, **{path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(BESIDE)}}

MAX_FUNCTION_LINES = 60
MAX_CLASS_LINES = 150
MAX_FILE_LINES = 400
MAX_CONFIG_FIELDS = 90
MAX_HELP_S = 0.5

UNPICKLING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
RUNNING_TEXT = {"eval", "exec", "compile", "__import__"}
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            yield path, node


def at(path: Path, node: ast.stmt | ast.expr) -> str:
    return f"{path.relative_to(SOURCE)}:{node.lineno}"


def num_lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    for path, node in nodes():
        if isinstance(node, ast.Call):
            yield path, node, ast.unparse(node.func)


Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def longer(kinds: type | UnionType, limit: int) -> list[tuple[Path, str, int]]:
    return [
        (path, node.name, num_lines(node))
        for path, tree in ALL_TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, Named) and isinstance(node, kinds) and num_lines(node) > limit
    ]


def test_functions_stay_short():
    assert longer(ast.FunctionDef | ast.AsyncFunctionDef, MAX_FUNCTION_LINES) == []


def test_classes_stay_short():
    assert longer(ast.ClassDef, MAX_CLASS_LINES) == []


def test_files_stay_short():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_TREES}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def leaf_fields(model: type[BaseModel]) -> list[str]:
    """Dotted names of the settings; a section counts as its fields, a free table as one."""
    leaves: list[str] = []
    for name, field in model.model_fields.items():
        sections = [part for part in parts_of(field.annotation) if issubclass(part, BaseModel)]
        inner = [leaf for section in sections for leaf in leaf_fields(section)]
        leaves += [f"{name}.{leaf}" for leaf in inner] or [name]
    return leaves


def parts_of(annotation: object) -> list[type]:
    if isinstance(annotation, type):
        return [annotation]
    return [part for argument in getattr(annotation, "__args__", ()) for part in parts_of(argument)]


def test_the_configuration_stays_small():
    leaves = leaf_fields(Config)
    assert {"model.path", "optim.lr", "model.lora.rank"} <= set(leaves)
    assert len(leaves) <= MAX_CONFIG_FIELDS, leaves


def test_nothing_is_unpickled():
    found = []
    for path, node in nodes():
        if isinstance(node, ast.Import):
            found += [at(path, node) for name in node.names if name.name.split(".")[0] in UNPICKLING]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLING:
            found.append(at(path, node))
    found += [
        at(path, call) for path, call, name in calls() if name in ("torch.load", "np.load", "numpy.load")
    ]
    assert found == []


def test_no_text_is_run_as_code():
    assert [at(path, call) for path, call, name in calls() if name in RUNNING_TEXT] == []


@pytest.mark.parametrize("option", ["trust_remote_code", "shell"])
def test_no_call_opens_the_door_to_foreign_code(option):
    found = [
        at(path, call)
        for path, call, _ in calls()
        for keyword in call.keywords
        if keyword.arg == option
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    ]
    assert found == []


def test_no_module_has_a_name_that_says_nothing():
    names = {part for path in TREES for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert {name for name in names if VAGUE_NAMES & set(name.split("_"))} == set()


def test_only_the_command_line_prints():
    found = [
        at(path, call)
        for path, call, name in calls()
        if name == "print" and path.relative_to(SOURCE).parts[0] != "cli"
    ]
    assert found == []


@pytest.mark.parametrize(
    "module", ["muster", "muster.config", "muster.store", "muster.data", "muster.cli", "muster.view.server"]
)
def test_what_only_reads_starts_without_torch(module):
    program = f"import sys, {module}\nprint(sorted({{'torch', 'transformers', 'peft'}} & set(sys.modules)))\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def cpu_seconds_of_help() -> float:
    """User and system time of one `muster --help`, which a busy machine lengthens less than a clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "muster", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "train" in done.stdout
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_help_answers_at_once():
    cpu_seconds_of_help()  # compiles what was never imported
    assert min(cpu_seconds_of_help() for _ in range(3)) <= MAX_HELP_S
