"""Files that a reward is named in and that hold none: refused by name before a run, whatever they are."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from limited import limited
from muster.callables import load_callable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by what Linux counts")


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "there is no file"),
    "a folder": (os.mkdir, "there is no file"),
    "zeros": (lambda path: path.symlink_to("/dev/zero"), "there is no file"),
    "itself": (lambda path: path.symlink_to(path), "there is no file"),
    "nothing": (holding(b""), "has no 'reward'"),
    "NUL": (holding(b"def reward(completion): return 1\x00"), "failed: "),
    "not UTF-8": (holding(b"x = '\xff'"), "failed: "),
    "no Python": (holding(b"\x7fELF\x02\x01\x01" * 99), "failed: "),
    "deep brackets": (holding(b"x = " + b"(" * 100_000 + b")" * 100_000), "failed: "),
    "deep sums": (holding(b"x = " + b"1+" * 200_000 + b"1"), "failed: "),
    "its own end": (holding(b"import sys\nsys.exit(0)"), "failed: SystemExit: 0"),
    "an error": (holding(b"raise OSError('no \x1b[2J')"), "failed: OSError"),
    "a number": (holding(b"reward = 3"), "is int, not a function"),
    "a class": (holding(b"class reward: pass"), "is a class"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_holds_no_reward_is_refused_by_its_name(name: str, tmp_path: Path):
    make, says = FILES[name]
    path = tmp_path / "grade.py"
    make(path)
    ended = limited(lambda: load_callable(f"{path}:reward"), memory_mib=800, seconds=20)
    assert ended.said.startswith("ConfigError: "), ended.said[:300]
    assert str(path) in ended.said
    assert says in ended.said, ended.said[:300]
