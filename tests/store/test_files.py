"""The file layer: a file is whole or absent whatever operation fails."""

from pathlib import Path

import pytest

from muster.files import Operation, append_line, complete_lines, publish_folder, watched, write_atomic


class FailAt:
    """Lets so many operations pass and fails the next."""

    def __init__(self, passes: int) -> None:
        self.left = passes

    def __call__(self, operation: Operation) -> None:
        """Counts down."""
        if self.left == 0:
            raise OSError(28, f"no space left, at {operation.kind}")
        self.left -= 1


def count(action) -> int:
    """How many operations an action has."""
    seen: list[Operation] = []
    with watched(seen.append):
        action()
    return len(seen)


def test_a_write_that_fails_anywhere_leaves_the_old_content_or_the_new(tmp_path: Path):  # P4
    path = tmp_path / "a"
    num = count(lambda: write_atomic(path, b"old"))
    assert num == 4  # write, sync, replace, sync of the folder
    for passes in range(num):
        write_atomic(path, b"old")
        with pytest.raises(OSError, match="disk is full"), watched(FailAt(passes)):
            write_atomic(path, b"new")
        assert path.read_bytes() == (b"new" if passes == 3 else b"old")
        assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_line_that_could_not_be_written_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "log"
    append_line(path, b"one")

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(28, "no space left")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="disk is full"):
        append_line(path, b"two")
    monkeypatch.undo()
    append_line(path, b"three")
    assert path.read_bytes() == b"one\nthree\n"


def test_a_last_line_without_end_is_not_read(tmp_path: Path):
    (tmp_path / "log").write_bytes(b"one\ntw")
    assert complete_lines(tmp_path / "log") == [b"one"]
    assert complete_lines(tmp_path / "none") == []


def test_a_folder_is_published_whole_over_an_older_one(tmp_path: Path):
    for content in (b"old", b"new"):
        staging = tmp_path / "staging"
        (staging / "deep").mkdir(parents=True)
        (staging / "deep" / "file").write_bytes(content)
        publish_folder(staging, tmp_path / "final")
    assert (tmp_path / "final/deep/file").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["final"]


def test_a_folder_that_could_not_be_published_is_not_there(tmp_path: Path):
    for passes in range(3):
        staging = tmp_path / f"staging{passes}"
        staging.mkdir()
        (staging / "file").write_bytes(b"x")
        with pytest.raises(OSError, match="disk is full"), watched(FailAt(passes)):
            publish_folder(staging, tmp_path / "final")
        assert not (tmp_path / "final").exists()
