"""Everything a resume needs, in safetensors and JSON, published in one rename.

    checkpoints/000050/
      weights.safetensors      the trainable parameters
      optimizer.safetensors    the optimizer's tensors, by parameter name
      old.safetensors          the synced copy that samples, where it lags behind
      ahead.json               completions for the next steps, where sampling runs ahead
      state.json               counters: step, updates, prompts drawn, versions; the optimizer's own
      manifest.json            size and SHA-256 of each file; written last

What ranks wrote together (`divided`) has files of some rows each, and an index of them. It is read alike, by
one process or any number of ranks.

A folder without a manifest, or that differs from it, is not a checkpoint. Checkpoints are taken between
steps only, so that no rollout in one is half used.
"""

import contextlib
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from muster.errors import CheckpointError
from muster.files import need_room, remove, staged, write_atomic, write_by
from muster.slices import INDEX, Rows, files_of, read, read_index

WHOLE, DIVIDED = 1, 2
"""Formats: each kind of tensors in one file, or by rows in several."""
MANIFEST = "manifest.json"
_NEEDED = {
    WHOLE: ("optimizer.safetensors", "state.json", "weights.safetensors"),
    DIVIDED: (INDEX, "state.json"),
}
_HEADER_BYTES = 200
"""What a tensor's name and shape, and the small files, take at most in a checkpoint, per tensor."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What was saved after a step."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    old: Mapping[str, Tensor] | None
    """The weights that sample, where they lag behind the trained ones."""
    state: Mapping[str, object]
    ahead: Mapping[str, object] | None = None
    """What was sampled for the steps to come; None where nothing is sampled ahead."""


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


def save(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Writes `folder/000050`, which appears whole or not at all; raises DiskFullError before it begins.

    A checkpoint of the same step gives way to the new one.
    """
    final = folder / f"{step:06d}"
    need_room(final, num_bytes(checkpoint))
    refuse_non_finite(checkpoint)
    with staged(final) as staging:
        _write(staging, step, checkpoint)
    return final


def num_bytes(checkpoint: Checkpoint) -> int:
    """What the checkpoint takes on disk, at most."""
    tensors = sum(tensor_bytes(tensors) for tensors in tensors_of(checkpoint).values())
    return tensors + sum(map(len, _texts(checkpoint).values()))


def tensors_of(checkpoint: Checkpoint) -> dict[str, Mapping[str, Tensor]]:
    """The tensors by their kind, which names their file."""
    parts = {"weights": checkpoint.weights, "optimizer": checkpoint.optimizer, "old": checkpoint.old}
    return {name: tensors for name, tensors in parts.items() if tensors is not None}


def _texts(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The rest by the name of its file, as JSON."""
    values = {"ahead.json": checkpoint.ahead, "state.json": checkpoint.state}
    return {
        name: json.dumps(dict(value), allow_nan=False).encode()
        for name, value in values.items()
        if value is not None
    }


def tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size of the file that holds the tensors, at most."""
    names = sum(len(name) + _HEADER_BYTES for name in tensors)
    return sum(tensor.nbytes for tensor in tensors.values()) + names


def _write(folder: Path, step: int, checkpoint: Checkpoint) -> None:
    for name, tensors in tensors_of(checkpoint).items():
        contiguous = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        path = folder / f"{name}.safetensors"
        write_by(partial(save_file, contiguous), path, tensor_bytes(contiguous))
    files = {path.name: fingerprint(path) for path in sorted(folder.iterdir())}
    seal(folder, step, checkpoint, files, WHOLE)


def seal(folder: Path, step: int, checkpoint: Checkpoint, files: Mapping[str, object], form: int) -> None:
    """Writes what is no tensor and, last, the manifest, which names that and the files there are already."""
    texts = _texts(checkpoint)
    for name, text in texts.items():
        write_atomic(folder / name, text)
    named = {**files, **{name: fingerprint(folder / name) for name in texts}}
    manifest = {"format": form, "step": step, "files": dict(sorted(named.items()))}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def retire(folder: Path, step: int, keep: int, spared: Collection[int] = ()) -> list[str]:
    """Removes checkpoints up to this step that `keep` newer ones stand in for; what could not be, and why.

    The `spared` steps stay beside those that are kept. Damaged ones stand in for nothing, and whatever
    isn't a checkpoint, or holds a file that none has, is left alone.
    """
    failed = []
    for path in _needless(folder, step, keep):
        if int(path.name) not in spared:
            try:
                remove(path)
            except OSError as error:
                failed.append(f"checkpoint {path.name} could not be removed: {error}")
    return failed


def _needless(folder: Path, step: int, keep: int) -> list[Path]:
    """Checkpoints up to this step that `keep` newer ones among them stand in for; 0 keeps all.

    Hashes would cost a read of everything that is kept, so here sizes say what is whole.
    """
    if not keep:
        return []
    earlier = [path for path in reversed(_numbered(folder)) if int(path.name) <= step]
    whole = [path for path in earlier if damage(path, hashes=False) is None]
    return [path for path in whole[keep:] if _holds_nothing_else(path)]


def _holds_nothing_else(path: Path) -> bool:
    """No file lies in a whole checkpoint but its own."""
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
        own = {MANIFEST, *json.loads((path / MANIFEST).read_bytes())["files"]}
        return {file.name for file in path.iterdir()} == own
    return False


def best(folder: Path, held_out: Mapping[int, float]) -> Path | None:
    """The whole checkpoint of the highest held-out reward, by step; of equal ones the first."""
    measured = [path for path in _numbered(folder) if int(path.name) in held_out]
    whole = [path for path in measured if damage(path, hashes=False) is None]
    return max(whole, key=lambda path: (held_out[int(path.name)], -int(path.name)), default=None)


def find(folder: Path, *, hashes: bool = True) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and for each newer one why it was passed over; as `damage` has it."""
    skipped: list[str] = []
    for path in reversed(_numbered(folder)):
        reason = damage(path, hashes=hashes)
        if reason is None:
            return path, skipped
        skipped.append(f"{path.name}: {reason}")
    return None, skipped


def damage(path: Path, *, hashes: bool = True) -> str | None:
    """Why a folder is no whole checkpoint; None where it is one. Without `hashes`, by sizes alone."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] > DIVIDED:
            return (
                f"written in format {manifest['format']}; this version reads up to {DIVIDED}: upgrade Muster"
            )
        if manifest["step"] != int(path.name):
            return f"its manifest is that of step {manifest['step']}"
        return _difference(path, manifest["format"], manifest["files"], hashes)
    except FileNotFoundError:
        return "it has no manifest: saving was interrupted"
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return f"its manifest can't be read ({error})"


def _difference(path: Path, form: int, named: Mapping[str, Mapping[str, object]], hashes: bool) -> str | None:
    """What the files of a checkpoint lack, or how they differ from what its manifest says of them."""
    if absent := [name for name in _NEEDED[form] if name not in named]:
        return f"its manifest names no {absent[0]}"
    changes = (_change(path, name, expected, hashes) for name, expected in named.items())
    if change := next(filter(None, changes), None):
        return change
    absent = sorted(files_of(read_index(path)) - named.keys()) if INDEX in named else []
    return f"its manifest names no {absent[0]}" if absent else None


def _change(folder: Path, name: str, expected: Mapping[str, object], hashes: bool) -> str | None:
    """How a file differs from what the manifest says of it; None where it doesn't."""
    path = folder / name
    if path.name != name or "\\" in name:
        return f"its manifest names {name!r}, which is no file of it"
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != expected["bytes"]:
        return f"{path.name} has another size than the manifest says"
    if hashes and fingerprint(path) != expected:
        return f"{path.name} differs from the manifest in its hash"
    return None


def load(path: Path, device: torch.device, rows: Rows | None = None) -> Checkpoint:
    """Reads a checkpoint that `find` or `damage` called whole; of each parameter those rows, or all."""
    ahead = path / "ahead.json"
    try:
        return Checkpoint(
            weights=read(path, "weights", rows, str(device)) or {},
            optimizer=read(path, "optimizer", rows, "cpu") or {},
            old=read(path, "old", rows, str(device)),
            state=_object(json.loads((path / "state.json").read_bytes())),
            ahead=_object(json.loads(ahead.read_bytes())) if ahead.exists() else None,
        )
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} can't be read: {error}. Remove the folder, so that a resume takes the one before."
        ) from error


def _object(state: object) -> dict[str, object]:
    if not isinstance(state, dict):
        raise ValueError(f"one of its JSON files holds {type(state).__name__} instead of an object")
    return state


def refuse_non_finite(checkpoint: Checkpoint) -> None:
    """Raises CheckpointError where a value is NaN or infinite: it would be gone on from."""
    for name, tensors in tensors_of(checkpoint).items():
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


def fingerprint(path: Path) -> dict[str, object]:
    """Size in bytes and SHA-256 of a file, as a manifest has them."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}
