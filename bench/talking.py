"""A worker process that is told over a pipe to do one thing at a time, and stays warm in between."""

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).resolve().parent
TAIL_LINES = 25
"""Of a worker's log, shown when it died."""
PATIENCE_S = 20.0
"""Seconds that a worker may take to end by itself."""
QUIET = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}

Reply = dict[str, object]


class Worker:
    """One side of a comparison in a process of its own, with its own peak of memory."""

    def __init__(
        self,
        script: str,
        arguments: list[str],
        log: Path,
        *,
        python: Path = Path(sys.executable),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = Path(script).stem
        self.log = log
        self._log_file = log.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(python), str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            text=True,
            env={**os.environ, **QUIET, **(environment or {})},
        )

    def ask(self, what: str) -> Reply:
        """Tells the worker to do something and waits for what it replies.

        Raises RuntimeError with the end of its log where the worker is gone.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            tail = "\n".join(self.log.read_text(encoding="utf-8").splitlines()[-TAIL_LINES:])
            raise RuntimeError(
                f"{self.name} ended before it answered {what!r}. Its log {self.log} ends:\n{tail}"
            )
        return json.loads(line)

    def close(self) -> None:
        """Ends the worker: it sees the end of its questions, and closes what it holds."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._log_file):
            if stream is not None:
                stream.close()


class Line:
    """The worker's end: what libraries print goes to the log, so that replies stay whole."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def asked(self) -> Iterator[str]:
        """What the worker is told, until the other end is closed."""
        for line in sys.stdin:
            yield line.strip()

    def reply(self, content: Reply) -> None:
        """Answers the last question; the process's peak of memory is part of it."""
        self._out.write(json.dumps({**content, "peak_bytes": peak_bytes()}) + "\n")
        self._out.flush()


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
