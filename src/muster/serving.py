"""A vLLM server for a run: its command line and environment, and the process while it runs.

vLLM lives in an environment of its own, whose Python is named. What the run needs of it is set here:
its lengths and precision, logprobs after temperature, adapters that come and go, calls that replace weights.
"""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
from torch import nn
from transformers import AutoConfig

from muster import pretrained
from muster.config import Config
from muster.converted import cache_folder
from muster.engines.wire import FaultError, RefusedError, Wire
from muster.errors import ConfigError, EngineError
from muster.files import staged, write_by
from muster.quiet import quiet

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Adapter ranks that vLLM 0.32 makes room for."""
MODULE = "vllm.entrypoints.openai.api_server"
"""What starts a server in every build: the command `vllm` looks for a package of that very name."""
MIN_LOGPROBS = 20
POLL_S, HEALTH_S, END_S = 0.5, 2.0, 20.0
CPU_CACHE_GIB = "1"
"""Keys and values on a CPU, unless the environment says otherwise: enough for small models."""

Say = Callable[[str], None]


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


def rank_of(config: Config) -> int | None:
    """The rank of the adapter that a configuration trains; None where it trains all weights."""
    if config.model.lora is not None:
        return config.model.lora.rank
    if config.model.adapter is None:
        return None
    file = Path(config.model.adapter).expanduser() / "adapter_config.json"
    try:
        return int(json.loads(file.read_bytes())["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"model.adapter: the rank can't be read from {file}: {error}") from error


def command_of(serving: Serving, say: Say) -> Command:
    """The command line and what the environment needs; makes a folder to serve where there is none yet."""
    if not serving.python.expanduser().is_file():
        raise ConfigError(
            f"--vllm-python is {str(serving.python)!r}, which is no file. Name the Python of the environment "
            "that vLLM is installed in, such as vllm-env/bin/python."
        )
    has_gpu = torch.cuda.is_available()
    model = pretrained.resolve(serving.model, say)
    if serving.rank is None and not has_gpu:
        model = with_head_of_its_own(model, say)
    arguments = [str(serving.python.expanduser()), "-m", MODULE, "--model", model]
    arguments += ["--host", serving.host, "--port", str(serving.port)]
    arguments += ["--dtype", serving.dtype, "--max-model-len", str(serving.max_tokens)]
    arguments += ["--seed", str(serving.seed), "--generation-config", "vllm"]
    arguments += ["--logprobs-mode", "processed_logprobs"]
    arguments += ["--max-logprobs", str(max(MIN_LOGPROBS, serving.top_k)), "--enable-scale-out"]
    if serving.rank is not None:
        arguments += ["--enable-lora", "--max-lora-rank", str(_room_for(serving.rank))]
        arguments += ["--max-loras", "1", "--max-cpu-loras", "2"]
    if not has_gpu:
        arguments += ["--enforce-eager"]
    return Command(
        arguments=(*arguments, *serving.more),
        environment=_environment(serving, has_gpu=has_gpu),
        url=f"http://{serving.host}:{serving.port}",
    )


def _room_for(rank: int) -> int:
    if rank > RANKS[-1]:
        raise ConfigError(f"model.lora.rank is {rank}, and vLLM takes adapters up to rank {RANKS[-1]}.")
    return next(room for room in RANKS if room >= rank)


def _environment(serving: Serving, *, has_gpu: bool) -> dict[str, str]:
    # Developer mode has the calls that replace weights; adapters have a switch of their own.
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if not has_gpu and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        environment["VLLM_CPU_KVCACHE_SPACE"] = CPU_CACHE_GIB
    if serving.key_env is not None:
        if not (key := os.environ.get(serving.key_env, "").strip()):
            raise ConfigError(f"--key-env names {serving.key_env}, which is not set in the environment.")
        environment["VLLM_API_KEY"] = key
    return environment


def with_head_of_its_own(model: str, say: Say) -> str:
    """A copy of a model whose head is its embedding, as two tensors; the model itself where it isn't.

    vLLM 0.32 on a CPU keeps a packed copy of a head, and a reload doesn't reach the one of a tied head: it
    would say logprobs by old weights. A head of its own is reloaded as any layer is.
    """
    with quiet():
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    if not config.get_text_config().tie_word_embeddings:
        return model
    folder = cache_folder() / f"untied-{_fingerprint(model)}"
    if not folder.is_dir():
        say(f"copying {Path(model).name} once, with a head of its own, to {folder}")
        loaded = pretrained.load_model(model, dtype=torch.float32, say=say)
        head = loaded.get_output_embeddings()
        assert isinstance(head, nn.Linear)
        head.weight = nn.Parameter(head.weight.detach().clone())
        loaded.config.tie_word_embeddings = False
        tokenizer = pretrained.load_tokenizer(model, say)
        with staged(folder) as staging, quiet():
            write_by(loaded.save_pretrained, staging)
            write_by(tokenizer.save_pretrained, staging)
    return str(folder)


def _fingerprint(model: str) -> str:
    """Names a model by its place and, of a folder, by the sizes and times of its files."""
    place = Path(model)
    files = [*sorted(place.glob("*.safetensors*")), place / "config.json"] if place.is_dir() else []
    told = [model, *(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)]
    return hashlib.sha256("\n".join(told).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def serve(command: Command, say: Say) -> int:
    """Runs the server until it ends or a signal ends it; 0, or what says by which signal.

    Raises EngineError where it ends by itself before it answers, or with an error.
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
            code = child.wait()
    finally:
        _end(child)
    if received:
        return 128 + received[0]
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
