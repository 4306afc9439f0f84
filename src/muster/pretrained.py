"""Models and tokenizers as they come: from a folder, a GGUF file, the hub, or the embedded model.

Weights are safetensors only, and no code that comes with a model is ever run.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Literal, TypedDict

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from muster.allocator import keep_freed_memory
from muster.converted import converted
from muster.embedded import NAME, find_embedded
from muster.errors import ConfigError, ModelError
from muster.nearest import did_you_mean
from muster.quiet import quiet

Say = Callable[[str], None]

KERNEL_KEYS = ("attn_implementation", "_attn_implementation", "experts_implementation")
"""Settings of a model that may name a kernel on the hub, which is a program."""

_PART = re.compile(r"[^/\\\x00]+\.safetensors")

HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?", re.ASCII)


def _silent(_: str) -> None:
    """Says nothing."""


def resolve(path: str, say: Say = _silent) -> str:
    """The folder that `model.path` means, or the hub id where it is no folder; converts a GGUF."""
    if path == NAME:
        return str(converted(find_embedded(), say))
    expanded = os.path.expanduser(path)
    if os.path.isfile(expanded) and expanded.lower().endswith(".gguf"):
        return str(converted(Path(expanded), say))
    if os.path.isdir(expanded):
        _check_folder(Path(expanded))
        return expanded
    if os.path.exists(expanded):
        raise ConfigError(
            f"model.path {path!r} is a file, but no .gguf file. Name the folder that it lies in."
        )
    near = did_you_mean(path, _known(path))
    if not HUB_ID.fullmatch(path) or path.lower().endswith(".gguf"):
        raise ConfigError(
            f"model.path {path!r} is neither a folder nor a .gguf file, and can't be a hub id."
            f"{near} It may also be {NAME!r}, the embedded model."
        )
    if near and "/" not in path:
        # Asking the hub for a mistyped name takes half a minute where there is no network.
        raise ConfigError(
            f"model.path {path!r} is neither a folder nor a .gguf file.{near} "
            f"If it is a model on the hub, give its owner too: owner/{path}."
        )
    return path


def load_tokenizer(path: str, say: Say = _silent) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to `model.path`; a fast one."""
    place = resolve(path, say)
    with _loading("tokenizer", path, place):
        _refuse_code(place)
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer of model.path {path!r} is {type(tokenizer).__name__}, which is not a fast one. "
            "Add a tokenizer.json to the model's folder."
        )
    return tokenizer


def load_model(path: str, *, dtype: torch.dtype | Literal["auto"], say: Say = _silent) -> PreTrainedModel:
    """The causal language model of `model.path`, whole, on the CPU, in evaluation mode.

    `dtype` "auto" is the precision that it is stored in.
    From here on the process keeps the memory that tensors give up (see `allocator`).
    """
    keep_freed_memory()
    place = resolve(path, say)
    with _loading("model", path, place):
        _refuse_code(place)
        _refuse_pickles(place)
        model, info = _load_whole(place, dtype)
    if mismatched := sorted(info["mismatched_keys"]):
        name, stored, wanted = mismatched[0]
        raise ModelError(
            f"the weights of model.path {path!r} have {len(mismatched)} tensors of another shape than "
            f"its {CONFIG_NAME} asks for, such as {name}: {list(stored)} where {list(wanted)} is due. "
            "Check that both come from the same model."
        )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"the weights of model.path {path!r} lack {len(missing)} tensors of {type(model).__name__}, "
            f"such as {missing[0]}: they would be random. Check that the folder holds the whole model."
        )
    if unexpected := sorted(info["unexpected_keys"]):
        say(
            f"left out {len(unexpected)} tensors that {type(model).__name__} has no use for, "
            f"such as {unexpected[0]}"
        )
    return model.eval()


def load_outline(path: str, say: Say = _silent) -> PreTrainedModel:
    """The model of `model.path` without its weights: shapes alone, on the device "meta"."""
    place = resolve(path, say)
    with _loading("configuration", path, place), torch.device("meta"):
        _refuse_code(place)
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False).eval()


class _LoadingInfo(TypedDict):
    """What did not fit, by the names of the tensors."""

    missing_keys: set[str]
    unexpected_keys: set[str]
    mismatched_keys: set[tuple[str, torch.Size, torch.Size]]
    """Each with its shape in the file and the one that is due."""


def _load_whole(place: str, dtype: torch.dtype | Literal["auto"]) -> tuple[PreTrainedModel, _LoadingInfo]:
    """The model, and the tensors that it lacked, had no use for, or found in another shape."""
    loaded: tuple[PreTrainedModel, _LoadingInfo] = AutoModelForCausalLM.from_pretrained(
        place,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        # Or transformers raises without naming a tensor; the caller refuses them all.
        ignore_mismatched_sizes=True,
    )  # pyright: ignore[reportAssignmentType]  # a pair, because of output_loading_info
    return loaded


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token that ends a completion: the tokenizer's end token and those of the generation config."""
    generation = model.generation_config
    own = generation.eos_token_id if generation is not None else None
    ids = own if isinstance(own, list) else [own]
    return frozenset(int(number) for number in [*ids, tokenizer.eos_token_id] if number is not None)


def stop_ids_of(path: str, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """What `stop_ids` gives of the model of `model.path`, from its settings, before it is loaded."""
    place = resolve(path)
    file = _file_of(place, GENERATION_CONFIG_NAME) or _file_of(place, CONFIG_NAME)
    settings = _json_object(file) if file is not None else {}
    text = settings.get("text_config")
    own = settings.get("eos_token_id", text.get("eos_token_id") if isinstance(text, dict) else None)
    ids = own if isinstance(own, list) else [own]
    return frozenset(int(number) for number in [*ids, tokenizer.eos_token_id] if number is not None)


def _check_folder(folder: Path) -> None:
    """Refuses a folder that is no model, where it can be told what it is instead."""
    if (folder / "config.json").is_file():
        return
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.path {str(folder)!r} holds an adapter. Name it as model.adapter, and as model.path the "
            "model that it was trained on."
        )
    if files := sorted(folder.glob("*.gguf")):
        raise ConfigError(
            f"model.path {str(folder)!r} holds GGUF files. Name one, such as {str(files[0])!r}."
        )
    raise ConfigError(
        f"model.path {str(folder)!r} is a folder without config.json, so it holds no model. "
        "Name a folder that save_pretrained wrote."
    )


def _refuse_pickles(place: str) -> None:
    """Refuses weights that would have to be unpickled, and an index that leads to some, or out of its folder.

    Asked before transformers is: for a hub id without safetensors it would have a bot convert them.
    """
    if not any(_file_of(place, name) for name in (SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME)):
        raise ModelError(
            f"model {place!r} has neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}. Only "
            "safetensors are read: opening .bin, .pt or .pth files can run code. Where you trust the model, "
            "load it with transformers and write it with save_pretrained."
        )
    index = _file_of(place, SAFE_WEIGHTS_INDEX_NAME)
    parts = _json_object(index).get("weight_map") if index is not None else {}
    for name in parts.values() if isinstance(parts, dict) else [parts]:
        if not isinstance(name, str) or not _PART.fullmatch(name):
            raise ModelError(
                f"the {SAFE_WEIGHTS_INDEX_NAME} of model {place!r} names {name!r}; parts are "
                ".safetensors files beside it. Get the model again from where it came from."
            )


def _refuse_code(place: str) -> None:
    """Refuses a model that names code to load it with; raises OSError where there is no model.

    An adapter beside the model is refused too: transformers would load the model that it names instead.
    """
    cached_file(place, CONFIG_NAME)
    for name in (CONFIG_NAME, TOKENIZER_CONFIG_FILE):
        file = _file_of(place, name)
        entry = _naming_code(_json_object(file)) if file is not None else None
        if entry is not None:
            raise ModelError(
                f"the {name} of model {place!r} has an {entry!r}: it asks to run code that comes from "
                "elsewhere. Muster never does. If transformers knows this kind of model itself, remove the "
                f"{entry!r} entry from a local copy."
            )
    if _file_of(place, ADAPTER_CONFIG_NAME) is not None:
        raise ModelError(
            f"model {place!r} has an {ADAPTER_CONFIG_NAME} beside its {CONFIG_NAME}, so it is a model and an "
            "adapter. Name the adapter's folder as model.adapter and the model's as model.path, each its own."
        )


def _naming_code(content: Mapping[str, object]) -> str | None:
    """The entry that names code: Python files of the model, or a kernel of the hub; None without one."""
    level: list[object] = [content]
    while level:
        tables = [value for value in level if isinstance(value, Mapping)]
        for table in tables:
            if "auto_map" in table:
                return "auto_map"
            for key in KERNEL_KEYS:
                # Those that transformers brings have names without an owner.
                if "/" in str(table.get(key)):
                    return key
        lists = [value for value in level if isinstance(value, list)]
        level = [inner for table in tables for inner in table.values()]
        level += [inner for values in lists for inner in values]
    return None


def _file_of(place: str, name: str) -> Path | None:
    if os.path.isdir(place):
        file = Path(place) / name
        return file if file.is_file() else None
    found = cached_file(place, name, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def _json_object(file: Path) -> dict[str, object]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no JSON object")
    return content


def _known(path: str) -> list[str]:
    """Names that `path` may have been meant to be: folders and GGUF files beside it, the embedded one."""
    parent = Path(path).expanduser().parent
    try:
        beside = sorted(parent.iterdir())
    except OSError:
        beside = []
    prefix = path[: len(path) - len(Path(path).name)]
    return [prefix + entry.name for entry in beside if entry.is_dir() or entry.suffix == ".gguf"] + [NAME]


@contextlib.contextmanager
def _loading(what: str, path: str, place: str) -> Generator[None]:
    """Runs transformers silently; what it raises becomes an error that names the path and the remedies."""
    try:
        with quiet():
            yield
    except ModelError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
        failed = f"the {what} of model.path {path!r} can't be loaded"
        if os.path.isdir(place):
            raise ModelError(f"{failed} from {place}: {reason}") from error
        raise ModelError(
            f"{failed}: there is no such folder, and the hub gave: {reason} "
            f"Check the name and the network (HF_HUB_OFFLINE, HF_TOKEN), name a local folder, or use "
            f"{NAME!r}, the embedded model.{did_you_mean(path, _known(path))}"
        ) from error
