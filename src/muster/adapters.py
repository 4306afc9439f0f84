"""LoRA adapters: put on a model, or continued from a folder that was trained before."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from muster.errors import ConfigError, ModelError
from muster.quiet import quiet

_LOADING_MORE = (
    "megatron_config",
    "corda_config",
    "eva_config",
    "loftq_config",
    "lora_ga_config",
)
"""Settings that name modules to import, or lead to caches that peft unpickles."""


def add_lora(
    model: PreTrainedModel, *, rank: int, alpha: float, targets: Sequence[str], seed: int
) -> PeftModel:
    """The model with a fresh LoRA adapter on its target layers (arXiv:2106.09685).

    A fresh adapter's product is zero: the policy starts as the model itself. Raises ConfigError
    where a target names no layer.
    """
    linear = {
        name.rpartition(".")[2]: isinstance(module, Conv1D)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not model.get_output_embeddings()
    }
    if missing := [target for target in targets if target not in linear]:
        raise ConfigError(
            f"model.lora.targets names {missing}, which this {model.config.model_type} model lacks. "
            f"Its linear layers are {sorted(linear)}."
        )
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType] - peft takes any number
        target_modules=list(targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        # GPT-2's Conv1D keeps its weight transposed.
        fan_in_fan_out=any(linear[target] for target in targets),
    )
    # peft draws the first matrix from the global generator.
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _checked(get_peft_model(model, config))


def load_adapter(model: PreTrainedModel, folder: Path) -> PeftModel:
    """The model with a trained adapter that goes on learning; its reference is the adapter as it is now."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / name).is_file():
            raise ConfigError(
                f"model.adapter is {str(folder)!r}, which holds no {name}. Name a folder that peft or "
                "Muster wrote; adapters in pickle files are refused."
            )
    _refuse_other_kinds(folder)
    # Its dropout, if it was made with any, never acts: no pass of a policy is in training mode.
    try:
        with quiet():
            return _checked(PeftModel.from_pretrained(model, str(folder), is_trainable=True))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"model.adapter is {str(folder)!r}, which doesn't fit this {model.config.model_type} model: "
            f"{error}"
        ) from error


def carried_over(adapted: PeftModel, base: PreTrainedModel) -> PeftModel:
    """The model's adapter, to the bit, on another copy of the base."""
    with quiet(), torch.random.fork_rng(devices=[]):
        other = _checked(get_peft_model(base, copy.deepcopy(adapted.active_peft_config)))
        set_peft_model_state_dict(other, get_peft_model_state_dict(adapted))
    return other


def _refuse_other_kinds(folder: Path) -> None:
    """Refuses an adapter whose settings would have peft import a module they name, or open a pickle."""
    file = folder / "adapter_config.json"
    try:
        settings = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"model.adapter: {file} is not JSON: {error}. Restore the file.") from error
    kind = settings.get("peft_type") if isinstance(settings, dict) else None
    if kind != "LORA":
        raise ConfigError(
            f"model.adapter: {file} has peft_type {kind!r}; Muster goes on from LoRA adapters only (LORA)."
        )
    if odd := [name for name in _LOADING_MORE if settings.get(name)]:
        raise ConfigError(
            f"model.adapter: {file} sets {', '.join(odd)}, which would load code or pickles, as Muster "
            "never does. Remove them: a trained adapter doesn't need them."
        )


def _checked(model: "PeftModel | object") -> PeftModel:
    if not isinstance(model, PeftModel):
        raise ModelError(f"peft returned a {type(model).__name__} instead of a model with an adapter.")
    return model
