"""vLLM itself, started in this process: the one place that imports it, and all that is called of it.

Its engine core runs here too, on the caller's thread, so that weights are handed over in memory. Checked with
vLLM 0.32 on a CPU.
"""

import contextlib
import os
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from muster.errors import ConfigError, EngineError, MusterError

VERSION = "0.32.0"
CALLED = (
    "LLM.enqueue",
    "LLM.collective_rpc",
    "LLM.reset_prefix_cache",
    "LLM.sleep",
    "LLM.wake_up",
    "LLMEngine.step",
    "LLMEngine.has_unfinished_requests",
    "LLMEngine.abort_request",
    "LLMEngine.add_lora",
    "LLMEngine.remove_lora",
    "LLMEngine.set_weight_version",
    "SamplingParams",
)
"""What has to be there."""
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Without it the engine core is a process of its own, which can't be handed tensors."""
UNLESS_SET = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}

Part = Literal["weights", "kv_cache"]
"""Of vLLM's memory."""


def require_vllm() -> None:
    """Raises ConfigError where vLLM is not installed beside Muster; nothing is imported."""
    if find_spec("vllm") is None:
        raise ConfigError(
            "engine.kind is 'vllm_inside', and vLLM is not installed in this environment. Install Muster "
            "into vLLM's, as docs/engines.md says. Or sample on servers, which have an environment of their "
            'own: engine.kind = "vllm".'
        )


class Request(NamedTuple):
    """Completions of one prompt to sample."""

    ids: Sequence[int]
    settings: Mapping[str, object]
    """As `SamplingParams` takes them."""


class Core:
    """vLLM with one model: what the engine asks of it, in vLLM's own calls.

    Whatever it raises is an EngineError that says what was asked.
    """

    def __init__(self, vllm: Any, llm: Any) -> None:
        self._vllm = vllm
        self._llm: Any = llm
        """None once it is closed."""
        self._num_adapters = 0
        self._adapter: Any = None
        """The adapter that is sampled with; None for the model itself."""

    def sample(self, requests: Sequence[Request], told: Callable[[int], None]) -> list[Mapping[str, object]]:
        """An answer to each request, as a server would give it; `told` how many there are so far."""
        engine = self._llm.llm_engine
        done: list[Any] = []
        with _named("sample"):
            names = self._llm.enqueue(
                [{"prompt_token_ids": list(request.ids)} for request in requests],
                [self._vllm.SamplingParams(**request.settings) for request in requests],
                lora_request=self._adapter,
                use_tqdm=False,
            )
            try:
                while engine.has_unfinished_requests():
                    done += [output for output in engine.step() if output.finished]
                    told(len(done))
            except BaseException:
                # What is left would come among the answers to the next call.
                engine.abort_request(names, internal=True)
                raise
        # They are numbered in the order in which they were given.
        return [_plain(output) for output in sorted(done, key=lambda output: int(output.request_id))]

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Puts these weights, by their names in a checkpoint, in the place of the model's own."""
        with _named("load the weights"):
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})

    def load_adapter(self, name: str, folder: Path) -> None:
        """Samples with this adapter from now on, which is read here; the one before is let go of."""
        request = import_module("vllm.lora.request").LoRARequest
        before, engine = self._adapter, self._llm.llm_engine
        # A number is never met twice: vLLM takes two adapters of one number for the same.
        self._num_adapters += 1
        with _named("load the adapter"):
            adapter = request(name, self._num_adapters, str(folder))
            if not engine.add_lora(adapter):
                raise EngineError(f"it did not take adapter {name}")
            self._adapter = adapter
            if before is not None:
                engine.remove_lora(before.lora_int_id)

    def name_weights(self, name: str) -> None:
        """Every token that is sampled from now on says that it was by weights of this name."""
        with _named("name the weights"):
            self._llm.llm_engine.set_weight_version(name)

    def forget_prompts(self) -> None:
        """Empties the cache of prompts, whose keys and values the weights before computed."""
        with _named("empty its cache of prompts"):
            if not self._llm.reset_prefix_cache():
                raise EngineError("some of it is in use")

    def sleep(self, level: Literal[1, 2]) -> None:
        """Gives its memory back: 1 keeps the weights on the CPU, 2 keeps nothing of them."""
        with _named("sleep"):
            self._llm.sleep(level=level)

    def wake(self, part: Part) -> None:
        """Takes back the memory of a part; the weights come first, and after level 2 hold nothing yet."""
        # What the trainer freed stays with torch, and vLLM needs it.
        torch.cuda.empty_cache()
        with _named("wake up"):
            self._llm.wake_up(tags=[part])

    def close(self) -> None:
        """Ends it; its memory is free for another."""
        if self._llm is None:
            return
        llm, self._llm = self._llm, None
        with _named("end"):
            llm.llm_engine.engine_core.shutdown()
            # What nobody holds any more is collected below.
            del llm
            import_module("vllm.distributed.parallel_state").cleanup_dist_env_and_memory()


def start(model: str, settings: Mapping[str, object]) -> Core:
    """Starts vLLM with the model, told these settings by its own names.

    Raises ConfigError where it can't be imported, or is a version that lacks what is called, and EngineError
    with what it said where it does not start.
    """
    with _environment(), _process_kept():
        vllm = _imported()
        try:
            llm = vllm.LLM(model=model, **settings)
        except Exception as error:
            raise EngineError(
                f"vLLM did not start in this process: {error} What it wrote above may say more. Where "
                "memory is short, set engine.options.memory_share to what is free."
            ) from error
    return Core(vllm, llm)


def _imported() -> Any:
    try:
        vllm = import_module("vllm")
        import_module("vllm.lora.request")
        lacking = [name for name in CALLED if not _has(vllm, name)]
    except ImportError as error:
        raise ConfigError(
            f"engine.kind is 'vllm_inside', and vLLM can't be imported here: {error}. Install Muster into "
            f"the environment of vLLM {VERSION}, as docs/engines.md says."
        ) from error
    if lacking:
        raise ConfigError(
            f"vLLM {getattr(vllm, '__version__', 'of an unknown version')} lacks {', '.join(lacking)}, which "
            f"engine.kind 'vllm_inside' calls. Install vllm=={VERSION}."
        )
    return vllm


def _has(vllm: object, name: str) -> bool:
    try:
        attrgetter(name)(vllm)
    except AttributeError:
        return False
    return True


@contextlib.contextmanager
def _environment() -> Generator[None]:
    """The variables that vLLM reads while it starts, and those that there were afterwards."""
    before = dict(os.environ)
    os.environ.update({**UNLESS_SET, **before, **IN_PROCESS})
    try:
        yield
    finally:
        for name in UNLESS_SET.keys() | IN_PROCESS.keys():
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


@contextlib.contextmanager
def _process_kept() -> Generator[None]:
    """What of this process is everyone's: vLLM seeds it, and on a CPU takes the threads for itself."""
    set_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(num_threads)
        random.setstate(python)
        np.random.set_state(numpy)


@contextlib.contextmanager
def _named(what: str) -> Generator[None]:
    """Gives what vLLM raises the name of what was asked of it."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, MusterError) else f"{type(error).__name__}: {error}"
        raise EngineError(f"vLLM in this process could not {what}: {said}") from error


def _plain(output: Any) -> dict[str, object]:
    """The answer as a server gives it."""
    return {
        "model": None if output.lora_request is None else output.lora_request.lora_name,
        "choices": [
            {
                "index": choice.index,
                "token_ids": list(choice.token_ids),
                "finish_reason": choice.finish_reason,
                "logprobs": {"content": _entries(choice.token_ids, choice.logprobs)},
                "weight_versions": [
                    {"version": span.version, "start": span.start, "end": span.end}
                    for span in choice.weight_versions or ()
                ],
            }
            for choice in output.outputs
        ],
    }


def _entries(ids: Sequence[int], logprobs: Any) -> list[dict[str, object]]:
    """For each token its logprob, and those of all that were likely enough to be kept."""
    given: Sequence[Any] = logprobs or ()
    return [
        {
            "token_id": token if token in likely else None,
            "logprob": likely[token].logprob if token in likely else None,
            "top_logprobs": [
                {"token_id": other, "logprob": entry.logprob} for other, entry in likely.items()
            ],
        }
        for token, likely in zip(ids, given, strict=False)
    ]
