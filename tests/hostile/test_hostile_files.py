"""Files made to hurt whoever reads them: each refused by its place, within bounded memory and time (P20)."""

import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from limited import limited
from muster.config import load
from muster.data import load_samples
from muster.data.files import MAX_LINE_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by what Linux counts")

MEMORY_MIB = 2_048
SECONDS = 20.0
MEBIBYTE = b"x" * 2**20


def written(path: Path, *parts: bytes, repeat: int = 1) -> Path:
    with path.open("wb") as file:
        for part in parts:
            for _ in range(repeat if part is MEBIBYTE else 1):
                file.write(part)
    return path


def huge_text(folder: Path) -> Path:
    return written(folder / "a.jsonl", b'{"prompt":"hi"}\n{"prompt":"', MEBIBYTE, b'"}\n', repeat=100)


def huge_cell(folder: Path) -> Path:
    return written(folder / "a.csv", b'prompt\nhi\n"', MEBIBYTE, b'"\n', repeat=100)


def open_quote(folder: Path) -> Path:
    """A quote that nothing closes, in a file of 1 GB; most of it is a hole on disk."""
    path = written(folder / "a.csv", b'prompt\nhi\n"', (b"y" * 99 + b"\n") * 400_000)
    os.truncate(path, 10**9)
    return path


def deep(folder: Path) -> Path:
    return written(folder / "a.jsonl", b'{"prompt":"hi","x":', b"[" * 10_000, b"]" * 10_000, b"}")


def deep_objects(folder: Path) -> Path:
    return written(folder / "a.json", b'[{"prompt":"hi","x":', b'{"a":' * 10_000, b"1", b"}" * 10_000, b"}]")


def many_empty(folder: Path) -> Path:
    """Millions of rows that are none."""
    return written(folder / "a.json", b"[" + b"0," * 5_000_000 + b"0]")


def many_lines(folder: Path) -> Path:
    return written(folder / "a.jsonl", b"0\n" * 5_000_000)


def many_columns(folder: Path) -> Path:
    names = ",".join(f"c{number}" for number in range(300_000))
    return written(folder / "a.csv", f"prompt,{names}\nhi{',1' * 300_000}\n".encode())


def no_names(folder: Path) -> Path:
    return written(folder / "a.csv", b"prompt" + b"," * 10_000_000 + b"\nhi\n")


def many_keys(folder: Path) -> Path:
    names = ",".join(f'"c{number}":1' for number in range(200_000))
    return written(folder / "a.jsonl", f'{{"prompt":"hi",{names}}}\n'.encode())


def many_double_keys(folder: Path) -> Path:
    names = ",".join(f'"c{number}":1,"c{number}":2' for number in range(100_000))
    return written(folder / "a.jsonl", f'{{"prompt":"hi",{names}}}\n'.encode())


def many_double_objects(folder: Path) -> Path:
    return written(folder / "a.jsonl", b'{"prompt":"hi","x":[' + b'{"a":1,"a":2},' * 50_000 + b"0]}\n")


def holes(folder: Path) -> Path:
    """A terabyte of zeros that takes no room."""
    path = written(folder / "a.jsonl", b'{"prompt":"hi"}\n')
    os.truncate(path, 2**40)
    return path


def holes_json(folder: Path) -> Path:
    path = written(folder / "a.json", b"[")
    os.truncate(path, 2**40)
    return path


def gzip_bomb(folder: Path) -> Path:
    path = folder / "a.jsonl"
    with gzip.open(path, "wb") as file:
        file.write(bytes(2**26))
    return path


def named_gzip_bomb(folder: Path) -> Path:
    return gzip_bomb(folder).rename(folder / "a.jsonl.gz")


def zeros(folder: Path) -> Path:
    (folder / "a.csv").symlink_to("/dev/zero")
    return folder / "a.csv"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "a.jsonl")
    return folder / "a.jsonl"


def itself(folder: Path) -> Path:
    (folder / "a.csv").symlink_to(folder / "a.csv")
    return folder / "a.csv"


def directory(folder: Path) -> Path:
    (folder / "a.csv").mkdir()
    return folder / "a.csv"


def lying_footer(folder: Path) -> Path:
    """The length at the end of the file says that the footer is larger than the file."""
    return written(folder / "a.parquet", b"PAR1" + bytes(100) + b"\xff\xff\xff\x7f" + b"PAR1")


def broken_footer(folder: Path) -> Path:
    path = good_parquet(folder)
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little")
    for place in range(len(data) - 8 - footer, len(data) - 8, 7):
        data[place] ^= 0xFF
    return written(path, bytes(data))


def cut_parquet(folder: Path) -> Path:
    data = good_parquet(folder).read_bytes()
    return written(folder / "a.parquet", data[: len(data) // 2], data[-200:])


def good_parquet(folder: Path) -> Path:
    pq.write_table(pa.table({"prompt": ["a", "b"] * 500}), folder / "a.parquet")
    return folder / "a.parquet"


def many_parquet_columns(folder: Path) -> Path:
    table = pa.table({f"c{number}": pa.array([1], pa.int8()) for number in range(20_000)})
    pq.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


def unpacking_bomb(folder: Path) -> Path:
    """One text of a mebibyte, once in the file and in each of its rows."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), pa.array(["x" * 2**20]))
    pq.write_table(pa.table({"prompt": texts}), folder / "a.parquet")
    assert (folder / "a.parquet").stat().st_size < 2**17
    return folder / "a.parquet"


REFUSED: dict[Callable[[Path], Path], str] = {
    huge_text: "line 2: is longer than 64 MiB",
    huge_cell: "line 3: is longer than 64 MiB",
    open_quote: "is not CSV: field larger than field limit",
    deep: "line 1: is nested too deeply",
    deep_objects: "line 1: is nested too deeply",
    many_empty: "1000 or more problems",
    many_lines: "1000 or more problems",
    many_columns: "header: has 300,001 columns; at most 10,000",
    no_names: "header: has 10,000,001 columns; at most 10,000",
    many_keys: "line 1: has 200,001 columns; at most 10,000",
    many_double_keys: "line 1: key 'c0' appears 2 times",
    many_double_objects: "line 1: key 'a' appears 2 times",
    holes: "line 2: is longer than 64 MiB",
    holes_json: "MiB; a JSON file may have 64 MiB",
    gzip_bomb: "is packed with gzip",
    named_gzip_bomb: "is packed with gzip",
    zeros: "is not a regular file",
    pipe: "is not a regular file",
    itself: "can't be opened",
    directory: "is a folder",
    lying_footer: "can't be read as Parquet",
    broken_footer: "can't be read as Parquet",
    cut_parquet: "can't be read as Parquet",
    many_parquet_columns: "header: has 20,000 columns; at most 10,000",
    unpacking_bomb: "unpacks to more than 2 GiB",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_a_hostile_data_file_is_refused_by_its_place(make: Callable[[Path], Path], tmp_path: Path):
    path = make(tmp_path)
    memory = 5_000 if make is unpacking_bomb else MEMORY_MIB
    ended = limited(lambda: load_samples(path), memory_mib=memory, seconds=SECONDS)
    assert ended.said.startswith("DataError: "), ended.said[:500]
    assert str(path) in ended.said
    assert REFUSED[make] in ended.said, ended.said[:500]
    assert len(ended.said) < 3_000


def test_the_limits_of_these_tests_hold():
    assert limited(lambda: bytes(3 * 2**30), memory_mib=MEMORY_MIB, seconds=9).said == "MemoryError: "
    assert limited(lambda: list(iter(int, 1)), memory_mib=99, seconds=0.2).said == "ended by SIGPROF"
    assert limited(lambda: "fine", memory_mib=99, seconds=9).said == "'fine'"
    assert MAX_LINE_BYTES == 64 * 2**20


def toml(text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        return written(folder / "run.toml", text.encode("utf-8", "surrogateescape"))

    return make


CONFIGS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "deep lists": (toml("a = " + "[" * 10_000 + "]" * 10_000), "nested too deeply"),
    "less deep lists": (toml("a = " + "[" * 200 + "]" * 200), "nested too deeply"),
    "deep keys": (toml("a." * 20_000 + "b = 1"), "more than 32 parts"),
    "deep tables": (toml("[" + "a." * 20_000 + "b]"), "more than 32 parts"),
    "deep quoted keys": (toml("[" + "\"a b\" . 'c'." * 20_000 + "b]"), "more than 32 parts"),
    "a long word": (toml("a" * 10**6), "Expected '=' after a key"),
    "many tables": (toml("".join(f"[t{n}]\na = 1\n" for n in range(50_000))), "is unknown"),
    "a huge text": (toml('[model]\npath = "' + "x" * 2**20 + '"'), "is larger than 1,048,576 bytes"),
    "an open text": (toml('[model]\npath = """' + "x\n" * 10_000), "Write it as TOML"),
    "a NUL": (toml('[model]\npath = "a\x00b"'), "is not TOML"),
    "not UTF-8": (toml("a = '\udcff'"), "is not UTF-8"),
    "a double key": (toml("[optim]\nlr = 1\nlr = 2"), "line 3: lr = 2 names what is given before"),
    "a number without end": (toml("a = " + "9" * 10_000), "Write it as TOML"),
    "zeros": (lambda folder: zeros(folder), "is not a regular file"),
    "a pipe": (lambda folder: pipe(folder), "is not a regular file"),
    "a folder": (lambda folder: directory(folder), "directory"),
    "itself": (lambda folder: itself(folder), "symbolic links"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hostile_configuration_is_refused_by_its_file(name: str, tmp_path: Path):
    make, says = CONFIGS[name]
    path = make(tmp_path)
    ended = limited(lambda: load(path), memory_mib=600, seconds=SECONDS)
    assert ended.said.startswith("ConfigError: "), ended.said[:300]
    assert str(path) in ended.said
    assert says in ended.said[:20_000], ended.said[:500]


def test_files_that_are_odd_but_right_are_read(tmp_path: Path):
    rows = "\ufeff" + "".join(json.dumps({"prompt": text}) + "\r\n" for text in ("a", "b"))
    written(tmp_path / "a.jsonl", rows.encode())
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    assert [sample.messages[0]["content"] for sample in load_samples(tmp_path / "b.jsonl")] == ["a", "b"]
