"""What a launcher told this process of the others that it started: torchrun, accelerate or srun."""

import os

from muster.errors import ConfigError


def is_launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return _number("WORLD_SIZE", 1) > 1


def local_rank() -> int:
    """Which of its machine's processes this one is."""
    return _number("LOCAL_RANK", _number("SLURM_LOCALID", 0))


def local_size() -> int:
    """How many of the processes run on this machine."""
    if not is_launched():
        return 1
    return max(1, _number("LOCAL_WORLD_SIZE", _number("SLURM_NTASKS_PER_NODE", 1)))


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdigit():
        raise ConfigError(
            f"the environment variable {name} is {text!r} instead of a whole number. A launcher such as "
            "torchrun sets it; unset it to train in one process."
        )
    return int(text)
