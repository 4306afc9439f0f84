"""The device that a process computes on: its name, its precision, and tensors on their way to it."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor


def device_here() -> torch.device:
    """The GPU of this process where there is one, else the CPU; of several ranks each has its own."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def name_of(device: torch.device) -> str:
    """What a person calls it."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    threads = torch.get_num_threads()
    return f"CPU, {threads} {'thread' if threads == 1 else 'threads'}"


def computing_in(dtype: torch.dtype | None, device: torch.device) -> "torch.autocast | nullcontext[None]":
    """Computes in a lower precision, weights staying as they are; None: in that of the weights."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a GPU takes it from pinned memory, so that nothing waits for what runs there.

    Memory of torch's own pool: it is not given to another tensor before the copy is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def settling(device: torch.device) -> Callable[[], object]:
    """What waits until all that was asked of the device is done: a GPU works on while Python goes on."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
