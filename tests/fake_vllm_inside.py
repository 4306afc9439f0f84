"""A module `vllm` that is called as vLLM 0.32 is, and samples from the model it is given, with vLLM's traps.

It caches what a prompt's end computed, by adapter, until it is told to forget it; asleep it has no memory,
and after a sleep of level 2 no weights. Adapters of one number are one adapter to it. A keyword that vLLM
doesn't have is an error, as there.
"""

import json
import os
import random
import sys
from collections import deque
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

MODULES = ("vllm", "vllm.lora", "vllm.lora.request", "vllm.distributed", "vllm.distributed.parallel_state")
PARTS: tuple[str, ...] = ("weights", "kv_cache")


@dataclass(kw_only=True)
class SamplingParams:
    n: int = 1
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_token_ids: list[int] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    logprobs: int | None = None


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


class Vllm:
    """What every LLM that is started notes, and what goes wrong with it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.settings: dict[str, Any] = {}
        """Of the LLM that was started last."""
        self.asked: list[SamplingParams] = []
        self.faults: deque[str] = deque()
        """What is wrong with the next answers, one after the other."""
        self.refuses_start = ""
        self.keeps_prompts = False
        self.ignores_loads = False
        """Weights and adapters are taken, and not sampled by."""
        self.living = 0


def install(patch: pytest.MonkeyPatch) -> Vllm:
    """Puts the module where an import finds it."""
    fake = Vllm()
    patch.setattr(LLM, "fake", fake)
    modules = {name: ModuleType(name) for name in MODULES}
    own = {"LLM": LLM, "LLMEngine": Engine, "SamplingParams": SamplingParams, "__version__": "0.32.0"}
    vars(modules["vllm"]).update(own)
    vars(modules["vllm.lora.request"])["LoRARequest"] = LoRARequest
    vars(modules["vllm.distributed.parallel_state"])["cleanup_dist_env_and_memory"] = lambda: None
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
        patch.setitem(sys.modules, name, module)
    return fake


class LLM:
    fake = Vllm()
    """Of the test that runs."""

    def __init__(
        self,
        model: str,
        *,
        dtype: str,
        max_model_len: int,
        seed: int,
        generation_config: str,
        logprobs_mode: str = "raw_logprobs",
        max_logprobs: int = 20,
        max_num_seqs: int,
        enforce_eager: bool = False,
        use_tqdm_on_load: bool = True,
        gpu_memory_utilization: float = 0.92,
        kv_cache_memory_bytes: int | None = None,
        enable_sleep_mode: bool = False,
        enable_lora: bool = False,
        max_lora_rank: int = 16,
        max_loras: int = 1,
        max_cpu_loras: int | None = None,
    ) -> None:
        given = dict(locals())
        fake = self.fake
        fake.settings = {name: value for name, value in given.items() if name != "self"}
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        if fake.refuses_start:
            raise ValueError(fake.refuses_start)
        random.seed(seed)
        torch.manual_seed(seed)
        # As on a CPU, where nobody else may choose the threads from then on.
        torch.set_num_threads(1)
        torch.set_num_threads = lambda num: None
        fake.living += 1
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.llm_engine = Engine(fake, base, AutoTokenizer.from_pretrained(model))
        self.num_given = 0

    def enqueue(self, prompts, sampling_params, *, lora_request=None, use_tqdm=True) -> list[str]:
        assert not self.llm_engine.asleep, "nothing is sampled asleep"
        assert not use_tqdm
        names = []
        for prompt, params in zip(prompts, sampling_params, strict=True):
            self.fake.asked.append(params)
            self.llm_engine.waiting.append(Request(str(self.num_given), prompt, params, lora_request))
            names.append(f"{self.num_given}-abcd")
            self.num_given += 1
        self.fake.calls.append("sample")
        return names

    def collective_rpc(self, method: str, timeout=None, args=(), kwargs=None) -> list[None]:
        assert method == "reload_weights"
        assert kwargs is not None
        self.fake.calls.append("load")
        assert "weights" not in self.llm_engine.asleep
        given = dict(kwargs["weights_iterator"])
        own = dict(self.llm_engine.model.named_parameters())
        assert given.keys() == own.keys(), given.keys() ^ own.keys()
        for name, param in own.items():
            if not self.fake.ignores_loads:
                param.data.copy_(given[name])
        return [None]

    def reset_prefix_cache(self, reset_running_requests=False, reset_connector=False) -> bool:
        self.fake.calls.append("forget")
        if not self.fake.keeps_prompts:
            self.llm_engine.seen.clear()
        return not self.fake.keeps_prompts

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        engine = self.llm_engine
        assert self.fake.settings["enable_sleep_mode"]
        assert not engine.waiting
        self.fake.calls.append(f"sleep {level}")
        engine.asleep, engine.level = {*PARTS}, level
        engine.seen.clear()
        engine.put_away = {name: param.data.clone() for name, param in engine.model.named_parameters()}
        for param in engine.model.parameters():
            param.data.fill_(torch.nan)

    def wake_up(self, tags: list[str] | None = None) -> bool:
        engine = self.llm_engine
        for part in tags or PARTS:
            self.fake.calls.append(f"wake {part}")
            assert part in engine.asleep
            engine.asleep.discard(part)
            if part == "weights" and engine.level == 1:
                for name, param in engine.model.named_parameters():
                    param.data.copy_(engine.put_away[name])
        return not engine.asleep


@dataclass(frozen=True)
class Request:
    name: str
    prompt: dict[str, list[int]]
    params: SamplingParams
    adapter: LoRARequest | None


class Engine:
    """Answers one request a step, the last one first."""

    def __init__(self, fake: Vllm, model: Any, tokenizer: Any) -> None:
        self.fake, self.model, self.tokenizer = fake, model, tokenizer
        self.engine_core = SimpleNamespace(shutdown=self._shutdown)
        self.waiting: list[Request] = []
        self.asleep: set[str] = set()
        self.level = 0
        self.put_away: dict[str, torch.Tensor] = {}
        self.version = "default"
        self.adapters: dict[int, dict[str, torch.Tensor]] = {}
        self.seen: dict[tuple[object, ...], torch.Tensor] = {}
        """The logits at a prompt's end, by the adapter's name and the prompt."""

    def _shutdown(self) -> None:
        self.fake.calls.append("end")
        self.fake.living -= 1

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:
        assert internal
        self.fake.calls.append("abort")
        self.waiting = [one for one in self.waiting if f"{one.name}-abcd" not in request_ids]

    def set_weight_version(self, weight_version: str) -> None:
        self.fake.calls.append("name " + ("loading" if "loading" in weight_version else "weights"))
        self.version = weight_version

    def add_lora(self, lora_request: LoRARequest) -> bool:
        self.fake.calls.append(f"add {lora_request.lora_int_id}")
        assert "weights" not in self.asleep
        if lora_request.lora_int_id in self.adapters:
            return False
        folder = Path(lora_request.lora_path)
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["r"] <= self.fake.settings["max_lora_rank"]
        tensors = load_file(folder / "adapter_model.safetensors")
        self.adapters[lora_request.lora_int_id] = {
            name.removeprefix("base_model.model.").replace("lora_A.", ""): config["lora_alpha"]
            / config["r"]
            * (tensors[name.replace("lora_A", "lora_B")] @ tensor)
            for name, tensor in tensors.items()
            if "lora_A" in name
        }
        return True

    def remove_lora(self, lora_id: int) -> bool:
        self.fake.calls.append(f"remove {lora_id}")
        return self.adapters.pop(lora_id, None) is not None

    def step(self) -> list[SimpleNamespace]:
        assert not self.asleep
        request = self.waiting.pop()
        fault = self.fake.faults.popleft() if self.fake.faults else ""
        if fault == "interrupt":
            raise KeyboardInterrupt
        if fault == "broken":
            raise RuntimeError("CUDA error: an illegal memory access")
        with torch.inference_mode(), self._adapted(request.adapter):
            outputs = [self._sampled(request, index) for index in range(request.params.n)]
        answer = SimpleNamespace(
            request_id=request.name, outputs=outputs, finished=True, lora_request=request.adapter
        )
        _spoil(answer, fault)
        return [answer]

    def _adapted(self, adapter: LoRARequest | None) -> "_Added":
        if adapter is None or self.fake.ignores_loads:
            return _Added(self.model, {})
        return _Added(self.model, self.adapters[adapter.lora_int_id])

    def _sampled(self, request: Request, index: int) -> SimpleNamespace:
        params, ids = request.params, request.prompt["prompt_token_ids"]
        assert params.seed is not None
        generator = torch.Generator().manual_seed(params.seed + index)
        drawn: list[int] = []
        logprobs: list[dict[int, SimpleNamespace]] = []
        reason = "length"
        while len(drawn) < params.max_tokens:
            logits = self._logits(request.adapter, tuple(ids), drawn)
            processed = _processed(logits, params)
            greedy = params.temperature == 0
            token = int(logits.argmax() if greedy else processed.exp().multinomial(1, generator=generator))
            said = logits.log_softmax(0) if self._says_raw() else processed
            best = said.topk(params.logprobs or 1).indices.tolist()[: params.logprobs]
            logprobs.append({one: SimpleNamespace(logprob=float(said[one])) for one in [token, *best]})
            drawn.append(token)
            if self._stops(drawn, params):
                reason = "stop"
                break
        span = SimpleNamespace(version=self.version, start=0, end=len(drawn))
        return SimpleNamespace(
            index=index, token_ids=drawn, logprobs=logprobs, finish_reason=reason, weight_versions=[span]
        )

    def _stops(self, drawn: list[int], params: SamplingParams) -> bool:
        assert params.detokenize == bool(params.stop)
        text = self.tokenizer.decode(drawn) if params.stop else ""
        return drawn[-1] in params.stop_token_ids or any(stop in text for stop in params.stop)

    def _says_raw(self) -> bool:
        return self.fake.settings["logprobs_mode"] != "processed_logprobs"

    def _logits(self, adapter: LoRARequest | None, prompt: tuple[int, ...], drawn: list[int]) -> torch.Tensor:
        key = (adapter and adapter.lora_name, prompt)
        if not drawn and key in self.seen:
            return self.seen[key]
        logits = self.model(input_ids=torch.tensor([[*prompt, *drawn]])).logits[0, -1]
        if not drawn:
            self.seen[key] = logits
        return logits


class _Added:
    """The adapter's product in the weights for as long as this lasts."""

    def __init__(self, model: Any, deltas: dict[str, torch.Tensor]) -> None:
        self.deltas = [(model.get_parameter(name), delta) for name, delta in deltas.items()]
        self.before: list[torch.Tensor] = [param.data for param, _ in self.deltas]

    def __enter__(self) -> None:
        for param, delta in self.deltas:
            param.data = param.data + delta

    def __exit__(self, *reason: object) -> None:
        for (param, _), data in zip(self.deltas, self.before, strict=True):
            param.data = data


def _processed(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Log-probabilities of what may be drawn, -inf elsewhere."""
    scaled = logits / (params.temperature or 1.0)
    if params.top_k:
        scaled = scaled.masked_fill(scaled < scaled.topk(params.top_k).values[-1], -torch.inf)
    ordered, order = scaled.softmax(0).sort(descending=True)
    beyond = order[ordered.cumsum(0) - ordered >= params.top_p]
    scaled[beyond] = -torch.inf
    probs = scaled.softmax(0)
    return scaled.masked_fill(probs < params.min_p * probs.max(), -torch.inf).log_softmax(0)


def _spoil(answer: SimpleNamespace, fault: str) -> None:
    first = answer.outputs[0]
    match fault:
        case "nan":
            first.logprobs[0][first.token_ids[0]].logprob = float("nan")
        case "short":
            first.logprobs.pop()
        case "fewer":
            answer.outputs.pop()
        case "abort":
            first.finish_reason = "abort"
        case "stale":
            first.weight_versions[0].version = "muster-old"
            answer.lora_request = answer.lora_request and LoRARequest("muster-old", 9, "nowhere")
        case _:
            assert not fault
