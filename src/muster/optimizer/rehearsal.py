"""An optimizer tried on a matrix and a vector, before a model loads: that it steps, and that it resumes."""

import json
import warnings
from typing import NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from muster.errors import CheckpointError, ConfigError
from muster.optimizer.choosing import Chosen
from muster.optimizer.state import Kept, kept, put_back, state_bytes

NAMES = ["matrix", "vector"]
SHAPES = ((64, 80), (8,))
"""The matrix is large enough for 8-bit states, which small tensors don't get."""


class Rehearsed(NamedTuple):
    """An optimizer that was seen to step and to go on from a checkpoint."""

    chosen: Chosen
    state_share: float
    """Bytes of its state for each byte that is trained."""


def rehearse(chosen: Chosen, lr: float) -> Rehearsed:
    """The optimizer, tried; raises ConfigError where it fails, or a resumed run would be another one.

    It takes a step; then it takes another, and so does a second one that was given its state by way of a
    checkpoint's bytes. Both must end at the same bits.
    """
    try:
        with warnings.catch_warnings():
            # What an optimizer has to say, it says to the run itself.
            warnings.simplefilter("ignore")
            straight, resumed, share = _both(chosen, lr)
    except (MemoryError, ConfigError):
        raise
    except CheckpointError as error:
        raise ConfigError(
            f"optim.name {chosen.name!r} can't be kept in checkpoints: {error}. Choose another optimizer."
        ) from error
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(
            f"optim.name {chosen.name!r} with options {dict(chosen.options)} fails on a matrix and a vector: "
            f"{type(error).__name__}: {reason}. Choose another optimizer, or other options."
        ) from error
    if not all(map(torch.equal, straight, resumed)):
        raise ConfigError(
            f"optim.name {chosen.name!r} does not go on as it was from a checkpoint: it keeps what it "
            "remembers elsewhere than in its state and groups, so that a resumed run would be another one. "
            "Choose another optimizer, or let it keep all in `self.state`."
        )
    return Rehearsed(chosen, share)


def _both(chosen: Chosen, lr: float) -> tuple[list[Tensor], list[Tensor], float]:
    """The parameters after two steps, in one go and by way of a checkpoint, and the state's size."""
    params = _params()
    optimizer = chosen.over(params, lr)
    _step(optimizer, params, 0)
    again = [nn.Parameter(param.detach().clone()) for param in params]
    other = chosen.over(again, lr)
    saved = kept(optimizer, NAMES)
    share = state_bytes(optimizer) / sum(param.nbytes for param in params)
    tensors = load(save({key: tensor.contiguous() for key, tensor in saved.tensors.items()}))
    put_back(other, NAMES, Kept(tensors, json.loads(json.dumps(saved.plain, allow_nan=False))))
    _step(optimizer, params, 1)
    _step(other, again, 1)
    return _params_of(optimizer), _params_of(other), share


def _params() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def _step(optimizer: Optimizer, params: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed + 1)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)
    optimizer.step()


def _params_of(optimizer: Optimizer) -> list[Tensor]:
    return [param.detach() for group in optimizer.param_groups for param in group["params"]]
