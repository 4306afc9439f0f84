"""A real vLLM server for a script: started as a user starts it, killed, and what it was asked for."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from muster.config import Config, to_toml
from muster.engines.wire import FaultError, Wire
from ranks_of import free_port

PORT = free_port()
URL = f"http://127.0.0.1:{PORT}"
START_S = 600.0
"""A start takes about a minute; on a busy machine several."""
NAMED, LOADED = "/update_weight_version", "/collective_rpc"
"""Calls of a load of all weights: the first comes twice, before and after."""


class RealServer:
    """`muster engine serve` for a configuration, until the block ends."""

    def __init__(self, python: str, config: Config, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "server.log"
        self._file = folder / "server.toml"
        self._file.write_text(to_toml(config), encoding="utf-8")
        self._command = [sys.executable, "-m", "muster", "engine", "serve", str(self._file)]
        self._command += ["--vllm-python", python, "--port", str(PORT), "--also=--max-num-seqs 16"]
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "RealServer":
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        print(f"  server ended with exit code {self.end()}", flush=True)

    def start(self) -> None:
        """Starts it and waits until it answers; SystemExit with the end of its log where it doesn't."""
        began = time.monotonic()
        with self._log.open("ab") as out:
            self._child = subprocess.Popen(self._command, stdout=out, stderr=out)
        while not _is_answering():
            if self._child.poll() is not None or time.monotonic() - began > START_S:
                raise SystemExit(f"the server did not start:\n{self._said()[-3000:]}")
            time.sleep(1.0)
        print(f"  server ready after {time.monotonic() - began:.0f} s", flush=True)

    def end(self) -> int | None:
        """Asks it to end; its exit code."""
        if self._child is None:
            return None
        self._child.send_signal(signal.SIGTERM)
        return self._child.wait(60)

    def kill(self) -> None:
        """Kills vLLM with all its processes, which can't do anything about it."""
        assert self._child is not None
        pid = self._child.pid
        [vllm] = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        os.killpg(int(vllm), signal.SIGKILL)
        self._child.wait(60)

    def num_calls(self, path: str) -> int:
        """How often it was asked for the path since it was made, by its log."""
        return self._said().count(f'"POST {path} HTTP')

    def wait_for(self, path: str, count: int) -> None:
        """Waits until it was asked for the path so often; raises TimeoutError where it isn't."""
        began = time.monotonic()
        while self.num_calls(path) < count:
            if time.monotonic() - began > START_S:
                raise TimeoutError(f"{path} was asked for {self.num_calls(path)} times instead of {count}")
            time.sleep(0.05)

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


def _is_answering() -> bool:
    wire = Wire(URL)
    try:
        wire.call("GET", "/health", timeout_s=2.0)
    except FaultError:
        return False
    finally:
        wire.close()
    return True
