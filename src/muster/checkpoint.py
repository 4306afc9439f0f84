"""Everything a resume needs, in safetensors and JSON, published in one rename.

    checkpoints/000050/
      weights.safetensors      the trainable parameters
      optimizer.safetensors    the optimizer's tensors, by parameter name
      old.safetensors          the synced copy that samples, where it lags behind
      state.json               counters: step, updates, prompts drawn, versions, budget
      manifest.json            size and SHA-256 of each file; written last

A folder without a manifest, or that differs from it, is not a checkpoint.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from muster.errors import CheckpointError
from muster.files import publish_folder, write_atomic

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What was saved after a step."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    old: Mapping[str, Tensor] | None
    """The weights that sample, where they lag behind the trained ones."""
    state: Mapping[str, object]


def optimizer_tensors(optimizer: Optimizer, names: list[str]) -> dict[str, Tensor]:
    """The optimizer's state as tensors named `parameter/entry`; `names` in the optimizer's order."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return {
        f"{name}/{entry}": torch.as_tensor(value)
        for name, param in zip(names, params, strict=True)
        for entry, value in optimizer.state.get(param, {}).items()
    }


def load_optimizer(optimizer: Optimizer, names: list[str], tensors: Mapping[str, Tensor]) -> None:
    """Puts saved tensors back, entry by entry, as the optimizer holds them."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    by_name = dict(zip(names, params, strict=True))
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        if name not in by_name:
            raise CheckpointError(
                f"the checkpoint's optimizer holds {name!r}, which the model does not train"
            )
        optimizer.state[by_name[name]][entry] = tensor


def save(folder: Path, step: int, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes `folder/000050`, then removes the oldest of its kind beyond `keep`.

    A checkpoint appears whole or not at all; older ones go only after it stands.
    """
    staging = folder / f".{step:06d}.partial"
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)
    parts = {"weights": checkpoint.weights, "optimizer": checkpoint.optimizer, "old": checkpoint.old}
    for name, tensors in parts.items():
        if tensors is not None:
            _refuse_non_finite(name, tensors)
            contiguous = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            save_file(contiguous, staging / f"{name}.safetensors")
    write_atomic(staging / "state.json", json.dumps(dict(checkpoint.state), allow_nan=False).encode())
    files = {path.name: _fingerprint(path) for path in sorted(staging.iterdir())}
    manifest = {"format": FORMAT, "step": step, "files": files}
    write_atomic(staging / MANIFEST, json.dumps(manifest, indent=1).encode())
    final = folder / f"{step:06d}"
    publish_folder(staging, final)
    for old in _numbered(folder)[:-keep] if keep else []:
        shutil.rmtree(old, ignore_errors=True)
    return final


def find(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and for each newer one why it was passed over."""
    skipped: list[str] = []
    for path in reversed(_numbered(folder)):
        reason = damage(path)
        if reason is None:
            return path, skipped
        skipped.append(f"{path.name}: {reason}")
    return None, skipped


def damage(path: Path) -> str | None:
    """Why a folder is no whole checkpoint; None where it is one."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] > FORMAT:
            return (
                f"written in format {manifest['format']}; this version reads up to {FORMAT}: upgrade Muster"
            )
        expected = manifest["files"]
        for name, fingerprint in expected.items():
            if Path(name).name != name or not (path / name).is_file():
                return f"{name} is missing"
            if _fingerprint(path / name) != fingerprint:
                return f"{name} differs from the manifest in size or hash"
    except FileNotFoundError:
        return "it has no manifest: saving was interrupted"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest can't be read ({error})"
    return None


def load(path: Path, device: torch.device) -> Checkpoint:
    """Reads a checkpoint that `find` or `damage` called whole."""
    tensors = {
        name: load_file(path / f"{name}.safetensors", device=str(device))
        for name in ("weights", "optimizer", "old")
        if (path / f"{name}.safetensors").exists()
    }
    if "weights" not in tensors:
        raise CheckpointError(f"{path} holds no weights.safetensors; it is not a training checkpoint")
    return Checkpoint(
        weights=tensors["weights"],
        optimizer=tensors.get("optimizer", {}),
        old=tensors.get("old"),
        state=json.loads((path / "state.json").read_bytes()),
    )


def _refuse_non_finite(name: str, tensors: Mapping[str, Tensor]) -> None:
    for key, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"{key} in {name} holds values that are not finite; nothing was saved, and the "
                "checkpoints before it are untouched. Lower optim.lr or resume from one of them."
            )


def _numbered(folder: Path) -> list[Path]:
    """Checkpoint folders by rising step; anything else in there is left alone."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.is_dir() and p.name.isdigit()), key=lambda p: int(p.name))


def _fingerprint(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}
