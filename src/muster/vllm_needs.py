"""What a run needs of vLLM, on a server and in this process: its settings, and a model that it loads right.

Set here are the run's lengths and precision, logprobs after temperature, and room for adapters that come and
go. Checked with vLLM 0.32.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig

from muster import pretrained
from muster.config import Config
from muster.converted import cache_folder
from muster.errors import ConfigError
from muster.files import staged, write_by
from muster.quiet import quiet

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Adapter ranks that vLLM 0.32 makes room for."""
MIN_LOGPROBS = 20
CPU_CACHE_GIB = 1
"""Keys and values on a CPU, where nothing says otherwise: enough for small models."""

Say = Callable[[str], None]
Setting = str | int | float | bool


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


def settings_for(
    *, dtype: str, max_tokens: int, rank: int | None, top_k: int, seed: int, has_gpu: bool
) -> dict[str, Setting]:
    """What vLLM is told, by its own names; without a GPU it computes eagerly."""
    settings: dict[str, Setting] = {
        "dtype": dtype,
        "max_model_len": max_tokens,
        "seed": seed,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": max(MIN_LOGPROBS, top_k),
    }
    if rank is not None:
        settings |= {"enable_lora": True, "max_lora_rank": _room_for(rank), "max_loras": 1}
        settings["max_cpu_loras"] = 2
    if not has_gpu:
        settings["enforce_eager"] = True
    return settings


def _room_for(rank: int) -> int:
    if rank > RANKS[-1]:
        raise ConfigError(f"model.lora.rank is {rank}, and vLLM takes adapters up to rank {RANKS[-1]}.")
    return next(room for room in RANKS if room >= rank)


def model_for(path: str, rank: int | None, say: Say, *, has_gpu: bool) -> str:
    """What vLLM loads for `model.path`; makes a folder for it where there is none yet."""
    model = pretrained.resolve(path, say)
    return with_head_of_its_own(model, say) if rank is None and not has_gpu else model


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
