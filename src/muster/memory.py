"""How much memory there really is, and how many packed tokens an update may hold at once.

A CPU raises nothing before the kernel kills the process, so the budget is set beforehand.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedConfig

from muster.launched import local_size
from muster.scaling import tokens_within

Result = TypeVar("Result")

CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")
ENOUGH_ON_CPU = 1024
"""Tokens at which a few cores run at their full rate already: more only take more memory."""


def until_it_fits(work: Callable[[], Result], halve: Callable[[], bool]) -> Result:
    """What the work gives: while the device runs out of memory it starts again, unless `halve` left nothing.

    `halve` makes the next attempt smaller, and is False where it can't.
    """
    while True:
        try:
            return work()
        except torch.OutOfMemoryError:
            if not halve():
                raise
        # Outside the handler, whose traceback would keep the tensors of the failed attempt alive.
        torch.cuda.empty_cache()


def available_bytes(device: torch.device, *, cgroup: Path = CGROUP, proc: Path = PROC) -> int:
    """Bytes that can still be allocated on the device, cgroup limits included."""
    if device.type == "cuda":
        # What torch holds and has given to no tensor is there for the next one.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    left = [_left_in(folder) for folder in _memory_cgroups(cgroup, proc)]
    there = min([_meminfo_available(proc), *(number for number in left if number is not None)])
    # The processes of a machine that train together share what it has.
    return there // local_size()


def peak_bytes(device: torch.device) -> int | None:
    """The most that this process has held on the device so far; None where the system doesn't say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource  # Windows has none.
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def held_bytes(device: torch.device, *, proc: Path = PROC) -> int | None:
    """What this process holds on the device now; None where the system doesn't say."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    fields = dict(line.split(":", 1) for line in _lines(proc / "self" / "status") if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024 if "VmRSS" in fields else None


def _memory_cgroups(cgroup: Path, proc: Path) -> list[Path]:
    """Folders of the groups that this process's memory counts in: its own and those above it."""
    found = [cgroup, cgroup / "memory"]
    for line in _lines(proc / "self" / "cgroup"):
        # number:controllers:path; version 2 has one line without controllers.
        _, controllers, path = line.split(":", 2)
        root = cgroup / "memory" if controllers == "memory" else cgroup
        if controllers in ("", "memory"):
            own = root / path.strip("/")
            found += [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return list(dict.fromkeys(found))


def _left_in(folder: Path) -> int | None:
    """What a group's limit leaves; file pages that the kernel would give back first don't count as used."""
    for limit_name, usage_name, cached_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is not None and usage is not None:
            stats = dict(line.split(maxsplit=1) for line in _lines(folder / "memory.stat"))
            return max(limit - max(usage - int(stats.get(cached_name, "0")), 0), 0)
    return None


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
    return tokens_within(
        free_bytes, reserved_bytes, activation_bytes(config, gradient_checkpointing, itemsize)
    )


def activation_bytes(config: PreTrainedConfig, gradient_checkpointing: bool, itemsize: int) -> int:
    """Bytes that one packed token keeps until the backward pass.

    Per layer about 12 vectors of the hidden size and 4 of the MLP's; in bfloat16, where what norms see
    stays float32 and each product casts its input anew, as much as 20. With gradient checkpointing only
    the layer's input, and one layer's worth while it is recomputed.
    """
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    layers = int(config.num_hidden_layers)
    per_layer = (20 if itemsize == 2 else 12) * hidden + 4 * inner
    kept = layers * hidden + per_layer if gradient_checkpointing else layers * per_layer
    return kept * itemsize


def _meminfo_available(proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 4 * 2**30  # no such file on macOS: assume a small machine


def _number(path: Path) -> int | None:
    """A file's number; None where there is no such file, or it says "max"."""
    text = " ".join(_lines(path))
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    except OSError:
        return []
