"""The trained model on disk: an adapter folder or full weights, read back and compared before it counts."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from muster import pretrained
from muster.config import Config, to_toml
from muster.errors import CheckpointError
from muster.escaping import escape_markdown
from muster.files import need_room, staged, write_atomic, write_by
from muster.policy import Policy
from muster.quiet import quiet

TOLERANCE = 1e-3
"""Nats by which logprobs of the read-back model may differ: merging an adapter rounds."""


def export_model(
    policy: Policy,
    folder: Path,
    *,
    card: str,
    probes: Sequence[tuple[int, ...]],
    base_path: str,
    merge: bool = False,
) -> float:
    """Writes the policy to a folder that appears only once its logprobs were read back equal.

    An adapter is written as peft writes it, or merged into full weights with `merge`. Returns the
    largest difference in nats; raises CheckpointError where it is above the tolerance.
    """
    model = _merged(policy.model) if merge and isinstance(policy.model, PeftModel) else policy.model
    with staged(folder) as staging:
        _write(model, policy, staging)
        write_atomic(staging / "README.md", card.encode())
        difference = _read_back(policy, staging, probes, base_path)
        if not difference <= TOLERANCE:
            raise CheckpointError(
                f"the exported model's logprobs differ by {difference:.3g} nats from the trained policy's "
                f"(at most {TOLERANCE} is rounding). {folder} was not written; the checkpoints are whole."
            )
    return difference


def _write(model: PreTrainedModel | PeftModel, policy: Policy, staging: Path) -> None:
    """Lets the libraries write, each in the formats that it reads again."""
    needed = sum(param.numel() * param.element_size() for param in _written(model))
    need_room(staging, needed)
    parts = [model, policy.tokenizer]
    if not isinstance(model, PeftModel) and policy.base.generation_config is not None:
        parts.append(policy.base.generation_config)
    with quiet():
        for part in parts:
            write_by(part.save_pretrained, staging, needed)


def _written(model: PreTrainedModel | PeftModel) -> list[nn.Parameter]:
    """The parameters that go to disk: of an adapter, those that are trained."""
    is_adapter = isinstance(model, PeftModel)
    return [param for param in model.parameters() if param.requires_grad or not is_adapter]


def _merged(adapted: PeftModel) -> PreTrainedModel:
    """A copy of the model with its adapter folded in; the model itself keeps its bits."""
    try:
        merged = copy.deepcopy(adapted).merge_and_unload(safe_merge=True)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"the adapter can't be merged into its model: {error}") from error
    left = [name for name, _ in merged.named_parameters() if "lora_" in name or ".base_layer." in name]
    if not isinstance(merged, PreTrainedModel) or left:
        raise CheckpointError(f"merging left parts of the adapter behind: {left[:3]}. Export the adapter.")
    return merged.eval()


def _read_back(policy: Policy, folder: Path, probes: Sequence[tuple[int, ...]], base_path: str) -> float:
    """Largest difference over the probes between the policy's logprobs and those of what was written."""
    if (folder / "adapter_config.json").exists():
        base = pretrained.load_model(base_path, dtype=torch.float32)
        with quiet():
            again: nn.Module = PeftModel.from_pretrained(base, str(folder))
    else:
        again = pretrained.load_model(str(folder), dtype=torch.float32)
    nn.Module.to(again, policy.device)
    again.eval()
    differences = [torch.zeros(())]
    with torch.no_grad():
        for probe in probes:
            ids = torch.tensor([probe], device=policy.device)
            ours, theirs = (
                model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
                for model in (policy.model, again)
            )
            differences.append((ours - theirs).abs().max().cpu())
    return float(torch.stack(differences).max())  # NaN where one of them is


def model_card(config: Config, metrics: Sequence[Mapping[str, object]]) -> str:
    """A README for the exported model: what it was trained from and how, and its held-out result."""
    held_out = [line for line in metrics if line.get("eval_reward") is not None]
    rewards = escape_markdown(", ".join(config.reward.use))
    lines = [
        "---",
        "library_name: transformers",
        "tags: [grpo, muster]",
        "---",
        "",
        f"# {escape_markdown(Path(config.model.path).name)}, fine-tuned with Muster",
        "",
        f"Recipe {escape_markdown(config.algo.recipe)}, reward {rewards}.",
        "",
    ]
    if held_out:
        first, last = held_out[0], held_out[-1]
        lines += [
            f"Held-out mean reward {first['eval_reward']:.3f} at step {first['step']}, "
            f"{last['eval_reward']:.3f} at step {last['step']}.",
            "",
        ]
    return "\n".join([*lines, "## Settings", "", "```toml", to_toml(config).strip(), "```", ""])
