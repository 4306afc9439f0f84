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
_NEEDED = {"weights.safetensors", "optimizer.safetensors", "state.json"}


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
        param = by_name[name]
        # Step counters are scalars, which optimizers keep on the CPU whatever the parameter's device.
        optimizer.state[param][entry] = tensor.to(param.device) if tensor.ndim else tensor


def put_weights(params: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: Path) -> None:
    """Copies saved weights into the parameters of those names; all of them, or none."""
    odd = sorted(params.keys() ^ weights.keys())
    odd += [name for name in params.keys() & weights.keys() if params[name].shape != weights[name].shape]
    if odd:
        raise CheckpointError(
            f"{source} and the model differ in their trainable parameters, for example {odd[:3]}. "
            "The model is not the one that was trained: set model.path and model.lora as they were."
        )
    with torch.no_grad():
        for name, param in params.items():
            param.copy_(weights[name])


def save(folder: Path, step: int, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes `folder/000050`, then removes the older ones that `keep` newer ones stand in for; 0 keeps all.

    A checkpoint appears whole or not at all; older ones go only after it stands.
    """
    staging = folder / f".{step:06d}.partial"
    final = folder / f"{step:06d}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _write(staging, step, checkpoint)
        publish_folder(staging, final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if keep:
        for old in _needless(folder, step, keep):
            shutil.rmtree(old, ignore_errors=True)
    return final


def _write(folder: Path, step: int, checkpoint: Checkpoint) -> None:
    parts = {"weights": checkpoint.weights, "optimizer": checkpoint.optimizer, "old": checkpoint.old}
    for name, tensors in parts.items():
        if tensors is not None:
            _refuse_non_finite(name, tensors)
            contiguous = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            save_file(contiguous, folder / f"{name}.safetensors")
    write_atomic(folder / "state.json", json.dumps(dict(checkpoint.state), allow_nan=False).encode())
    files = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "step": step, "files": files}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def _needless(folder: Path, step: int, keep: int) -> list[Path]:
    """Checkpoints before this one that `keep` newer ones, this one included, stand in for.

    Damaged ones stand in for nothing, and whatever isn't a checkpoint is left alone. Hashes would
    cost a read of everything that is kept, so here sizes say what is whole.
    """
    earlier = [path for path in reversed(_numbered(folder)) if int(path.name) < step]
    whole = [path for path in earlier if damage(path, hashes=False) is None]
    return whole[keep - 1 :]


def find(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and for each newer one why it was passed over."""
    skipped: list[str] = []
    for path in reversed(_numbered(folder)):
        reason = damage(path)
        if reason is None:
            return path, skipped
        skipped.append(f"{path.name}: {reason}")
    return None, skipped


def damage(path: Path, *, hashes: bool = True) -> str | None:
    """Why a folder is no whole checkpoint; None where it is one. Without `hashes`, by sizes alone."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] > FORMAT:
            return (
                f"written in format {manifest['format']}; this version reads up to {FORMAT}: upgrade Muster"
            )
        if manifest["step"] != int(path.name):
            return f"its manifest is that of step {manifest['step']}"
        if absent := _NEEDED - manifest["files"].keys():
            return f"its manifest names no {min(absent)}"
        changes = (_change(path / name, expected, hashes) for name, expected in manifest["files"].items())
        return next(filter(None, changes), None)
    except FileNotFoundError:
        return "it has no manifest: saving was interrupted"
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return f"its manifest can't be read ({error})"


def _change(path: Path, expected: Mapping[str, object], hashes: bool) -> str | None:
    """How a file differs from what the manifest says of it; None where it doesn't."""
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != expected["bytes"]:
        return f"{path.name} has another size than the manifest says"
    if hashes and _fingerprint(path) != expected:
        return f"{path.name} differs from the manifest in its hash"
    return None


def load(path: Path, device: torch.device) -> Checkpoint:
    """Reads a checkpoint that `find` or `damage` called whole."""
    old = path / "old.safetensors"
    return Checkpoint(
        weights=load_file(path / "weights.safetensors", device=str(device)),
        optimizer=load_file(path / "optimizer.safetensors"),
        old=load_file(old, device=str(device)) if old.exists() else None,
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
    return sorted(
        (p for p in folder.iterdir() if p.is_dir() and p.name.isdecimal()), key=lambda p: int(p.name)
    )


def _fingerprint(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}
