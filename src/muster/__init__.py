"""Muster fine-tunes language models with GRPO: it gathers groups of completions and inspects them."""

import logging
import os
from typing import TYPE_CHECKING

# By default torch's threads spin for milliseconds where they wait for each other; beside any other busy
# process that stretched one decoding step of a 135M model on two cores from 0.11 to over 1 s. GNU OpenMP
# reads this when torch is loaded, so it comes first; the caller's own setting wins.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# peft imports bitsandbytes where that is installed, which then warns of a kernel that it could have
# fetched from the hub. Nobody misses it.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

if TYPE_CHECKING:
    from muster.api import train as train
    from muster.notebook import OpenRun as OpenRun
    from muster.notebook import follow as follow
    from muster.notebook import open_run as open_run
    from muster.records import (
        Completion,
        EvalReport,
        Group,
        Prompt,
        Rollout,
        Sample,
        Score,
        StepReport,
        StreamKey,
        Trace,
    )
    from muster.run import Watchers as Watchers

_HOMES = {
    "train": "muster.api",
    "OpenRun": "muster.notebook",
    "follow": "muster.notebook",
    "open_run": "muster.notebook",
    "Watchers": "muster.run",
    "Completion": "muster.records",
    "EvalReport": "muster.records",
    "Group": "muster.records",
    "Prompt": "muster.records",
    "Rollout": "muster.records",
    "Sample": "muster.records",
    "Score": "muster.records",
    "StepReport": "muster.records",
    "StreamKey": "muster.records",
    "Trace": "muster.records",
}

__all__ = [
    "Completion",
    "EvalReport",
    "Group",
    "OpenRun",
    "Prompt",
    "Rollout",
    "Sample",
    "Score",
    "StepReport",
    "StreamKey",
    "Trace",
    "Watchers",
    "follow",
    "open_run",
    "train",
]


def __getattr__(name: str) -> object:
    """Finds a public name where it lives, so that `import muster` doesn't wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
