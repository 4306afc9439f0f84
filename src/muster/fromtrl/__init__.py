"""A TRL or Unsloth script, or a JSON of arguments, as a run's configuration; nothing of it is run."""

from muster.fromtrl.options import (
    BITS_OPTIONS,
    GRPO_OPTIONS,
    LORA_OPTIONS,
    TRAINER_OPTIONS,
    UNSLOTH_OPTIONS,
)
from muster.fromtrl.reading import Found, read
from muster.fromtrl.writing import Converted, converted

__all__ = [
    "BITS_OPTIONS",
    "GRPO_OPTIONS",
    "LORA_OPTIONS",
    "TRAINER_OPTIONS",
    "UNSLOTH_OPTIONS",
    "Converted",
    "Found",
    "converted",
    "read",
]
