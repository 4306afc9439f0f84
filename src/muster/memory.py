"""How much memory there really is, and how many packed tokens an update may hold at once.

A CPU raises nothing before the kernel kills the process, so the budget is set beforehand.
"""

from pathlib import Path

import torch
from transformers import PreTrainedConfig

CGROUP = Path("/sys/fs/cgroup")
SHARE = 0.5
"""Of the memory that is free at start: the rest is for optimizer state, caches and others."""
LARGEST_BUDGET = 16_384
"""Tokens; beyond this a larger micro-batch is no faster."""


def available_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on the device, cgroup limits included."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = _meminfo_available()
    for limit_file, usage_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, usage = _number(CGROUP / limit_file), _number(CGROUP / usage_file)
        if limit is not None and usage is not None:
            free = min(free, max(limit - usage, 0))
    return free


def budget_tokens(
    config: PreTrainedConfig,
    free_bytes: int,
    *,
    reserved_bytes: int,
    gradient_checkpointing: bool,
    itemsize: int,
) -> int:
    """Packed tokens whose activations fit into the share of free memory that is left to them.

    `reserved_bytes`: what gradients and optimizer state will take once they exist.
    """
    left = max(free_bytes - reserved_bytes, 0) * SHARE
    return max(
        256, min(LARGEST_BUDGET, int(left / activation_bytes(config, gradient_checkpointing, itemsize)))
    )


def activation_bytes(config: PreTrainedConfig, gradient_checkpointing: bool, itemsize: int) -> int:
    """Bytes that one packed token keeps until the backward pass.

    Per layer about 12 vectors of the hidden size and 4 of the MLP's; with gradient checkpointing
    only the layer's input, and one layer's worth while it is recomputed.
    """
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    layers = int(config.num_hidden_layers)
    per_layer = 12 * hidden + 4 * inner
    kept = layers * hidden + per_layer if gradient_checkpointing else layers * per_layer
    return kept * itemsize


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 * 2**30  # no such file on macOS: assume a small machine


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
