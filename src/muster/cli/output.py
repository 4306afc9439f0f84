"""Where the command line writes: a console, and JSON lines, that survive a reader who leaves."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import IO

from rich.console import Console

from muster.cli.text import escape_text
from muster.redaction import redacted


class PatientConsole(Console):
    """A console that falls silent when its reader has had enough (`muster train run.toml | head`).

    rich would end the process there, and a run with it.
    """

    def on_broken_pipe(self) -> None:
        """Writes to nowhere from now on."""
        self.quiet = True
        silence(self.file)


def print_line(line: str, stream: IO[str] | None = None) -> None:
    """Prints a line at once, on stdout without a stream; to nowhere once its reader has left."""
    place: IO[str] = sys.stdout if stream is None else stream
    try:
        print(line, file=place, flush=True)
    except BrokenPipeError:
        silence(place)


def log_line(text: str) -> None:
    """Prints a line of log on stderr: escaped, without secrets."""
    print_line(escape_text(redacted(text)), sys.stderr)


def program() -> str:
    """The command as it can be typed here: `muster`, or by its path where a shell wouldn't find this one."""
    called = Path(sys.argv[0])
    found = shutil.which("muster")
    if called.name != "muster" or not called.is_file() or (found and os.path.samefile(found, called)):
        return "muster"
    return shlex.quote(os.path.relpath(called))


def silence(stream: IO[str]) -> None:
    """Turns a stream whose reader has left to nowhere, so that nothing fails on it again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
