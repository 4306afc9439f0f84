"""Whatever is written goes through the file layer: no other module opens a file to write, or renames one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import muster

SOURCE = Path(muster.__file__).parent
LAYER = "files.py"
EXCEPTIONS = {
    "store/lock.py": "a lock is held, not kept",
    "converted.py": "a link, or a copy, in a temporary folder",
    "data/templates.py": "a pipe",
    "export/held.py": "the answer of a process, in a temporary folder",
    "export/process.py": "a socket in a temporary folder",
    "sandbox": "programs run in temporary folders of their own",
    "rewards/pool": "pipes and /proc",
    "cli/entry.py": "the null device",
    "cli/output.py": "the null device",
}
HANDING = {"write_by", "publish_by"}
METHODS = {
    "write_text", "write_bytes", "rename", "unlink", "rmdir", "mkdir", "touch", "symlink_to",
    "save_pretrained",
}  # fmt: skip
FUNCTIONS = {
    "os.open", "os.replace", "os.rename", "os.remove", "os.unlink", "os.mkdir", "os.makedirs", "os.truncate",
    "shutil.rmtree", "shutil.copyfile", "shutil.copy", "shutil.copytree", "shutil.move",
    "save_file", "torch.save", "np.save",
}  # fmt: skip


def writes(tree: ast.Module) -> Iterator[int]:
    """Lines that write to the disk; what is handed to the layer to be called there does not count."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    handed = {id(inner) for call in calls if ast.unparse(call.func) in HANDING for inner in ast.walk(call)}
    for node in calls:
        if id(node) in handed:
            continue
        name = ast.unparse(node.func)
        method = name.rpartition(".")[2]
        if name in FUNCTIONS or ("." in name and method in METHODS):
            yield node.lineno
        if method == "open" and opens_to_write(node):
            yield node.lineno
        if method == "write_table" and not any(ast.unparse(argument) == "sink" for argument in node.args):
            yield node.lineno


def opens_to_write(call: ast.Call) -> bool:
    """One of the arguments is a mode that writes."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = [node.value for node in given if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return any(set(text) <= set("rwxabt+") and set(text) & set("wxa+") for text in texts)


def found_in(folder: Path) -> list[str]:
    """Each place that writes, but in the layer and in the exceptions."""
    places = []
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if name != LAYER and not any(name == known or name.startswith(f"{known}/") for known in EXCEPTIONS):
            places += [f"{name}:{line}" for line in writes(ast.parse(path.read_text(encoding="utf-8")))]
    return places


def test_only_the_file_layer_writes():  # P4
    assert found_in(SOURCE) == []


def test_every_exception_is_needed():
    needed = set()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if list(writes(ast.parse(path.read_text(encoding="utf-8")))):
            needed |= {known for known in EXCEPTIONS if name == known or name.startswith(f"{known}/")}
    assert needed == set(EXCEPTIONS)


def test_the_scan_finds_what_it_looks_for(tmp_path: Path):
    lines = [
        "open('file', 'w')",
        "path.open(mode='ab')",
        "path.write_text('')",
        "os.replace(a, b)",
        "save_file(a, b)",
        "model.save_pretrained(folder)",
        "shutil.rmtree(folder)",
        "path.unlink()",
        "pq.write_table(table, path)",
        "open('file')",
        "path.open('rb')",
        "pq.write_table(table, sink)",
        "text.replace('a', 'b')",
        "write_by(lambda folder: model.save_pretrained(folder), path)",
    ]
    (tmp_path / "module.py").write_text("\n".join(lines))
    assert found_in(tmp_path) == [f"module.py:{line}" for line in range(1, 10)]
