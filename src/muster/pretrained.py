"""Models and tokenizers as they come: from a folder, a GGUF file, the hub, or the embedded model.

Weights are safetensors only, and no code that comes with a model is ever run.
"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from muster.converted import converted
from muster.embedded import NAME, find_embedded
from muster.errors import ConfigError, ModelError
from muster.nearest import did_you_mean
from muster.quiet import quiet

Say = Callable[[str], None]

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
    if not HUB_ID.fullmatch(path) or path.lower().endswith(".gguf"):
        raise ConfigError(
            f"model.path {path!r} is neither a folder nor a .gguf file, and can't be a hub id."
            f"{did_you_mean(path, _known(path))} It may also be {NAME!r}, the embedded model."
        )
    return path


def load_tokenizer(path: str, say: Say = _silent) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to `model.path`; a fast one."""
    place = resolve(path, say)
    try:
        _refuse_code(place)
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise _unloadable("tokenizer", path, place, error) from error
    if not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer of model.path {path!r} is {type(tokenizer).__name__}, which is not a fast one. "
            "Add a tokenizer.json to the model's folder."
        )
    return tokenizer


def load_model(path: str, *, dtype: torch.dtype, say: Say = _silent) -> PreTrainedModel:
    """The causal language model of `model.path`, whole, on the CPU, in evaluation mode."""
    place = resolve(path, say)
    try:
        _refuse_code(place)
        with quiet():
            model, info = _load_whole(place, dtype)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise _unloadable("model", path, place, error) from error
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


def _load_whole(place: str, dtype: torch.dtype) -> tuple[PreTrainedModel, dict[str, set[str]]]:
    """The model, and the names of the tensors that it lacked or had no use for."""
    loaded: tuple[PreTrainedModel, dict[str, set[str]]] = AutoModelForCausalLM.from_pretrained(
        place, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
    )  # pyright: ignore[reportAssignmentType]  # a pair, because of output_loading_info
    return loaded


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token that ends a completion: the tokenizer's end token and those of the generation config."""
    generation = model.generation_config
    own = generation.eos_token_id if generation is not None else None
    ids = own if isinstance(own, list) else [own]
    return frozenset(int(number) for number in [*ids, tokenizer.eos_token_id] if number is not None)


def _check_folder(folder: Path) -> None:
    """Refuses a folder whose weights would have to be unpickled, or that holds none."""
    if any(folder.glob("*.safetensors")) or not (folder / "config.json").exists():
        return
    if pickles := sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]):
        raise ModelError(
            f"model.path {str(folder)!r} has its weights in {pickles[0].name}: such files can run code when "
            "they are opened, so only .safetensors are read. Save the model again with save_pretrained."
        )


def _refuse_code(place: str) -> None:
    """Refuses a model that names Python code to load it with."""
    for name in ("config.json", "tokenizer_config.json"):
        file = _file_of(place, name)
        if file is not None and "auto_map" in _json_object(file):
            raise ModelError(
                f"the {name} of model {place!r} has an 'auto_map': it asks to run Python code that comes "
                "with the model. Muster never does. If transformers knows this kind of model itself, remove "
                "the 'auto_map' entry from a local copy."
            )


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


def _unloadable(what: str, path: str, place: str, error: Exception) -> ModelError:
    """The error for a failed load, with the remedies for where the model was looked for."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if os.path.isdir(place):
        return ModelError(f"the {what} of model.path {path!r} can't be loaded from {place}: {reason}")
    return ModelError(
        f"the {what} of model.path {path!r} can't be loaded: there is no such folder, and the hub gave: "
        f"{reason}.{did_you_mean(path, _known(path))} Check the name and the network (HF_HUB_OFFLINE, "
        f"HF_TOKEN), name a local folder, or use {NAME!r}, the embedded model."
    )
