"""A vLLM server for a run: its command line and environment, and the process while it runs.

vLLM lives in an environment of its own, whose Python is named. What a run needs of any vLLM is in
`vllm_needs`; here are the calls that replace weights, the key, and where it answers.
"""

import contextlib
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

from muster.config import Config
from muster.engines.servers import is_dead
from muster.engines.wire import FaultError, RefusedError, Wire
from muster.errors import ConfigError, EngineError
from muster.vllm_needs import CPU_CACHE_GIB, Say, Setting, model_for, rank_of, settings_for

MODULE = "vllm.entrypoints.openai.api_server"
"""What starts a server in every build: the command `vllm` looks for a package of that very name."""
POLL_S, HEALTH_S, WATCH_S, END_S = 0.5, 2.0, 15.0, 20.0


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What to serve, for whom."""

    python: Path
    """Of vLLM's environment."""
    model: str
    """As `model.path` names it."""
    dtype: str = "float32"
    max_tokens: int = 4096
    rank: int | None = None
    """Of the adapter that the run trains; None where it trains all weights."""
    top_k: int = 0
    seed: int = 0
    host: str = "127.0.0.1"
    port: int = 8000
    key_env: str | None = None
    """Variable that holds the key that callers have to give."""
    more: tuple[str, ...] = ()
    """Further arguments for vLLM, which come last."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A process to start."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    """What is set beside the environment that there is."""
    url: str


def serving_of(config: Config, *, python: Path, port: int, host: str) -> Serving:
    """What a run of this configuration samples on."""
    return Serving(
        python=python,
        model=config.model.path,
        dtype=config.model.dtype,
        max_tokens=config.model.max_tokens,
        rank=rank_of(config),
        top_k=config.sampling.top_k,
        seed=config.run.seed,
        port=port,
        host=host,
    )


def command_of(serving: Serving, say: Say) -> Command:
    """The command line and what the environment needs; makes a folder to serve where there is none yet."""
    if not serving.python.expanduser().is_file():
        raise ConfigError(
            f"--vllm-python is {str(serving.python)!r}, which is no file. Name the Python of the environment "
            "that vLLM is installed in, such as vllm-env/bin/python."
        )
    has_gpu = torch.cuda.is_available()
    model = model_for(serving.model, serving.rank, say, has_gpu=has_gpu)
    arguments = [str(serving.python.expanduser()), "-m", MODULE, "--model", model]
    arguments += ["--host", serving.host, "--port", str(serving.port), "--enable-scale-out"]
    settings = settings_for(
        dtype=serving.dtype,
        max_tokens=serving.max_tokens,
        rank=serving.rank,
        top_k=serving.top_k,
        seed=serving.seed,
        has_gpu=has_gpu,
    )
    arguments += [word for name, value in settings.items() for word in _flag(name, value)]
    return Command(
        arguments=(*arguments, *serving.more),
        environment=_environment(serving, has_gpu=has_gpu),
        url=f"http://{serving.host}:{serving.port}",
    )


def _flag(name: str, value: Setting) -> list[str]:
    """A setting as the command line takes it; what is on is a flag alone."""
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, str(value)]


def _environment(serving: Serving, *, has_gpu: bool) -> dict[str, str]:
    # Developer mode has the calls that replace weights; adapters have a switch of their own.
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if not has_gpu and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(CPU_CACHE_GIB)
    if serving.key_env is not None:
        if not (key := os.environ.get(serving.key_env, "").strip()):
            raise ConfigError(f"--key-env names {serving.key_env}, which is not set in the environment.")
        environment["VLLM_API_KEY"] = key
    return environment


def serve(command: Command, say: Say) -> int:
    """Runs the server until it ends or a signal ends it; 0, or what says by which signal.

    Raises EngineError where it ends by itself before it answers, or with an error, and where its engine is
    gone and it stays.
    """
    host, port = command.url.removeprefix("http://").rsplit(":", 1)
    _refuse_taken(host, int(port))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # A session of its own: a Ctrl-C reaches it through us alone, and its children with it.
    child = subprocess.Popen(
        command.arguments, env={**environment, **command.environment}, start_new_session=True
    )
    try:
        with _passed_on(child) as received:
            _wait_until_it_answers(child, command.url, received)
            if child.poll() is None and not received:
                say(f"ready: {command.url}")
            code = _wait_for_its_end(child, command.url, received)
    finally:
        _end(child)
    if received:
        return 128 + received[0]
    if code is None:
        raise EngineError(
            "vLLM's engine died, and its server stayed. What it wrote above says why. Start it again: a run "
            "that waits for it goes on."
        )
    if code:
        raise EngineError(f"vLLM ended with exit code {code}. What it wrote above says why.")
    return 0


def _refuse_taken(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"--port {port} of {host} can't be used: {error.strerror}. Name another one."
            ) from error


@contextlib.contextmanager
def _passed_on(child: "subprocess.Popen[bytes]") -> Generator[list[int]]:
    """Hands Ctrl-C and SIGTERM to the child; the list tells which ones came."""
    received: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        received.append(number)
        _signal(child, number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_it_answers(child: "subprocess.Popen[bytes]", url: str, received: list[int]) -> None:
    wire = Wire(url)
    try:
        while child.poll() is None and not received:
            try:
                wire.call("GET", "/health", timeout_s=HEALTH_S)
            except (FaultError, RefusedError):
                time.sleep(POLL_S)
            else:
                return
    finally:
        wire.close()


def _wait_for_its_end(child: "subprocess.Popen[bytes]", url: str, received: list[int]) -> int | None:
    """Its exit code; None where it was killed: it should have ended, by a signal or since its engine is gone.

    A vLLM whose engine died while it took weights waits for the answer, and would never end by itself.
    """
    wire = Wire(url)
    looks_at, ends_at = time.monotonic() + WATCH_S, math.inf
    try:
        while (code := child.poll()) is None and (now := time.monotonic()) < ends_at:
            is_due = now >= looks_at
            if ends_at == math.inf and (received or (is_due and is_dead(wire))):
                ends_at = now + END_S
            looks_at = now + WATCH_S if is_due else looks_at
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_S)
        if code is None:
            _signal(child, signal.SIGKILL)
        return code
    finally:
        wire.close()


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Ends the child and whatever it started."""
    if child.poll() is None:
        _signal(child, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_S)
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
