"""A server that speaks vLLM's HTTP and samples from a tiny model, with the faults that real ones have.

Real sockets, real weights: it reads what the trainer wrote, and computes with it. So proof and training pass
where everything is right, and fail where the engine did something wrong.
"""

import contextlib
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from safetensors.torch import load_file

from muster.adapters import add_lora
from muster.batch import Row, collate
from muster.engines.answers import LOADING
from muster.engines.base import Sampling
from muster.engines.local import LocalEngine
from muster.engines.options import VllmOptions
from muster.engines.vllm import VllmEngine
from muster.policy import Policy
from muster.records import Completion, Prompt, StreamKey
from tiny import tiny_model, tiny_policy, tiny_tokenizer

NOTHING = -9999.0
"""What vLLM writes for no probability."""

Json = dict[str, Any]


class Reply(NamedTuple):
    """An answer, and how it is broken on the way."""

    status: int
    value: object
    how: str = ""


FAULTY = {
    "500": Reply(500, {"error": {"message": "EngineDeadError"}}),
    "400": Reply(400, {"error": {"message": "max_tokens is too large"}}),
}


def start_policy() -> Policy:
    """The policy that runs of small models begin with."""
    return Policy(tiny_model(), tiny_tokenizer(), max_tokens=128)


def served_by(fakes: "Sequence[FakeVllm]", *, ahead: int = 0, **options: object) -> Json:
    """The engine section of a run that these servers sample for."""
    options = {"urls": [fake.url for fake in fakes], "patience_s": 0.2, **options}
    return {"kind": "vllm", "ahead": ahead, "options": options}


class FakeVllm:
    """One server; `policy` is its own copy of the trainer's model, at the start's weights.

    `faults` holds what goes wrong with the next requests for completions, one after the other.
    """

    def __init__(self, make_policy: Callable[[], Policy], *, key: str | None = None) -> None:
        self._make_policy = make_policy
        self.key = key
        self.faults: deque[str] = deque()
        self.is_raw = False
        """Logprobs are those before temperature, as without processed_logprobs."""
        self.takes_adapters = True
        self.lacks: set[str] = set()
        """Paths that it doesn't know."""
        self.dies_at: set[str] = set()
        """Paths at whose next call the engine behind the calls dies."""
        self.dies_silently = False
        """That call is not answered before the server is stopped."""
        self._stopped = threading.Event()
        self.calls: list[str] = []
        """The paths that were asked for, in order."""
        self.bodies: list[Json] = []
        """What was asked of the model."""
        self._lock = threading.Lock()
        self._server: Listening | None = None
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Answers, at the weights of the start, whatever was loaded before."""
        self.policy = self._make_policy()
        self.is_dead = False
        self._stopped.clear()
        self.version = "default"
        self.adapters: dict[str, dict[str, torch.Tensor]] = {}
        self._server = Listening(self._port, self)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuses connections from now on, and breaks off those that there are."""
        self._stopped.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.break_off()
            self._server = None

    def answer(self, path: str, body: Json) -> Reply:
        self.calls.append(path)
        if path in self.dies_at:
            self.dies_at, self.is_dead = set(), True
            if self.dies_silently:
                self._stopped.wait(30)
        if self.is_dead:
            return Reply(503, None) if path == "/health" else FAULTY["500"]
        known: dict[str, Callable[[Json], Reply]] = {
            "/health": lambda _: Reply(200, None),
            "/v1/load_lora_adapter": self._load_adapter,
            "/v1/unload_lora_adapter": self._unload_adapter,
            "/update_weight_version": self._name,
            "/collective_rpc": self._reload,
            "/reset_prefix_cache": lambda _: Reply(200, {"success": True}),
            "/inference/v1/generate": self._generate,
        }
        return known[path](body) if path in known.keys() - self.lacks else Reply(404, {"detail": "Not Found"})

    def _unload_adapter(self, body: Json) -> Reply:
        self.adapters.pop(body["lora_name"], None)
        return Reply(200, "Success")

    def _name(self, body: Json) -> Reply:
        self.version = body["new_version"]
        return Reply(200, {"success": True})

    def _load_adapter(self, body: Json) -> Reply:
        name, folder = body["lora_name"], Path(body["lora_path"])
        if not self.takes_adapters:
            return Reply(500, {"error": {"message": "LoRA rank 64 is greater than max_lora_rank 16."}})
        if name in self.adapters:
            return Reply(400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}})
        config = json.loads((folder / "adapter_config.json").read_text())
        assert isinstance(self.policy.model, PeftModel)
        assert config["r"] == self.policy.model.peft_config["default"].to_dict()["r"]
        tensors = load_file(folder / "adapter_model.safetensors")
        self.adapters[name] = {key.replace(".weight", ".default.weight"): t for key, t in tensors.items()}
        return Reply(200, f"Success: LoRA adapter '{name}' added successfully.")

    def _reload(self, body: Json) -> Reply:
        assert body["method"] == "reload_weights"
        tensors = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
        for name, param in self.policy.base.named_parameters():
            param.data.copy_(tensors[name])
        return Reply(200, {"results": [None]})

    def _generate(self, body: Json) -> Reply:
        self.bodies.append(body)
        fault = self.faults.popleft() if self.faults else ""
        if fault in FAULTY:
            return FAULTY[fault]
        if fault == "slow":
            time.sleep(1.0)
        if fault == "restart":
            self.policy, self.version, self.adapters = self._make_policy(), "default", {}
        name = body.get("model")
        if name is not None and name not in self.adapters:
            return Reply(404, {"error": {"message": f"The model `{name}` does not exist."}})
        choices = self._choices(body, None if name is None else self.adapters[name])
        answer: Json = {"model": name or "toy", "choices": choices}
        _spoil(answer, fault)
        return Reply(200, answer, fault if fault in ("die", "half") else "")

    def _choices(self, body: Json, weights: dict[str, torch.Tensor] | None) -> list[Json]:
        asked, ids = body["sampling_params"], tuple(body["token_ids"])
        prompts = [Prompt(ids=ids, key=StreamKey(asked["seed"] + i, 0, 0, 0)) for i in range(asked["n"])]
        sampling = Sampling(
            group_size=1,
            stop_ids=frozenset(asked["stop_token_ids"]),
            stop_strings=tuple(asked["stop"]),
            **{name: asked[name] for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p")},
        )
        engine = LocalEngine(self.policy)
        with self._lock:
            if weights is not None:
                engine.load_weights(weights.items(), 0)
            done = [group[0] for group in engine.generate(prompts, sampling)]
            if self.is_raw:
                batch = collate([ids], [Row(0, replace(completion, kept=None), 0.0) for completion in done])
                with torch.no_grad():
                    raw = self.policy.score(batch, temperature=1.0).logprobs.tolist()
                done = [
                    replace(c, sampler_logprobs=tuple(row[: len(c.ids)]))
                    for c, row in zip(done, raw, strict=True)
                ]
        return [_choice(index, completion, self.version) for index, completion in enumerate(done)]


def _choice(index: int, done: Completion, version: str) -> Json:
    """As vLLM tells of a completion."""
    content: list[Json] = [
        {"token_id": token, "logprob": logprob, "top_logprobs": [{"token_id": token, "logprob": 0.0}]}
        for token, logprob in zip(done.ids, done.sampler_logprobs, strict=True)
    ]
    for entry, kept in zip(content, done.kept or (), strict=False):
        entry["top_logprobs"] = [{"token_id": token, "logprob": -1.0} for token in kept]
        entry["top_logprobs"].append({"token_id": 1 + max(kept), "logprob": NOTHING})
    return {
        "index": index,
        "finish_reason": done.finish_reason,
        "token_ids": list(done.ids),
        "logprobs": {"content": content},
        "weight_versions": [{"version": version, "start": 0, "end": len(done.ids)}],
    }


def _spoil(answer: Json, fault: str) -> None:
    first = answer["choices"][0]
    entries = first["logprobs"]["content"]
    if fault == "loading":
        first["weight_versions"][0]["version"] = LOADING
    elif fault == "stale":
        first["weight_versions"][0]["version"] = answer["model"] = "muster-old"
    elif fault in ("nan", "nothing"):
        entries[0]["logprob"] = float("nan") if fault == "nan" else NOTHING
    elif fault == "short":
        entries.pop()
    elif fault == "missing":
        del first["token_ids"]
    elif fault == "fewer":
        answer["choices"].pop()
    elif fault == "abort":
        first["finish_reason"] = "abort"


class Listening(ThreadingHTTPServer):
    """Knows its connections, so that they can be broken off."""

    daemon_threads = True

    def __init__(self, port: int, fake: FakeVllm) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.fake = fake
        self.open: list[socket.socket] = []

    def get_request(self):
        request = super().get_request()
        self.open.append(request[0])
        return request

    def break_off(self) -> None:
        for connection in self.open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(self._fake().answer(self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        key = self._fake().key
        if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
            self._reply(Reply(401, {"error": "Unauthorized"}))
        else:
            self._reply(self._fake().answer(self.path, body))

    def _fake(self) -> FakeVllm:
        assert isinstance(self.server, Listening)
        return self.server.fake

    def _reply(self, reply: Reply) -> None:
        value = reply.value
        text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
        raw = text.encode()
        if reply.how == "die":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        raw = raw[: len(raw) // 2] if reply.how == "half" else raw
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Says nothing."""


def adapted() -> Policy:
    model = add_lora(tiny_model(), rank=4, alpha=8.0, targets=["q_proj", "v_proj", "down_proj"], seed=1)
    return Policy(model, tiny_tokenizer(), max_tokens=256)


POLICIES = {"full": tiny_policy, "lora": adapted}


def policy_of(engine: VllmEngine) -> Policy:
    """What is trained, and sampled on the servers."""
    assert isinstance(engine.policy, Policy)
    return engine.policy


@contextlib.contextmanager
def served(make_policy=tiny_policy, count=1, **options):
    """An engine with so many servers, and these."""
    fakes = [FakeVllm(make_policy) for _ in range(count)]
    settings = {"urls": [fake.url for fake in fakes], "patience_s": 5.0, "timeout_s": 20.0, **options}
    engine = VllmEngine(make_policy(), VllmOptions.model_validate(settings))
    try:
        yield engine, fakes
    finally:
        engine.close()
        for fake in fakes:
            fake.stop()


def prompts(count=2, length=5):
    return [
        Prompt(ids=tuple(range(10 + slot, 10 + slot + length)), key=StreamKey(3, 1, slot, 0))
        for slot in range(count)
    ]


def sampling(**settings):
    return Sampling(**{"group_size": 4, "max_tokens": 8, "stop_ids": frozenset(range(2, 40)), **settings})


def flat(groups):
    return [completion for group in groups for completion in group]


def gap(policy, asked, groups, temperature=1.0):
    rows = [Row(place, done, 0.0) for place, group in enumerate(groups) for done in group]
    batch = collate([prompt.ids for prompt in asked], rows)
    with torch.no_grad():
        scores = policy.score(batch, temperature=temperature)
    return float((scores.logprobs - batch.sampler_logprobs)[batch.mask].abs().max())


def moved(policy, by=0.05):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, param in policy.trainable():
            param.add_(by * torch.randn(param.shape, generator=generator))
