"""`muster export`."""

from pathlib import Path
from typing import Annotated, Literal

from muster.cli.flags import Json, about
from muster.errors import ConfigError


def export(
    target: Annotated[str, about("A run or a checkpoint in one: name or folder.")],
    /,
    *,
    to: Annotated[Path, about("Folder to write, or a file ending in .gguf; it must not be there yet.")],
    merge: Annotated[bool, about("Fold an adapter into full weights.")] = False,
    dtype: Annotated[
        Literal["f32", "f16", "bf16"] | None, about("Precision of a GGUF's matrices; f16 without.")
    ] = None,
    json: Json = False,
) -> int:
    """Write a run's model to a folder that transformers, peft and vLLM load, or to a GGUF file.

    A fresh process reads back what was written; only what is the trained model appears.

    **Examples**

    ```text
    muster export demo-1 --to people-model
    muster export demo-1 --to people-model --merge
    muster export demo-1 --to people.gguf --dtype f16
    muster export runs/demo-1/checkpoints/000050 --to step-50
    ```
    """
    from muster.cli.targets import model_of, needed_run_folder, run_of_checkpoint
    from muster.cli.text import escape_text
    from muster.config import load
    from muster.store import to_json

    is_gguf = to.suffix.lower() == ".gguf"
    if dtype is not None and not is_gguf:
        raise ConfigError(f"--dtype {dtype} is for GGUF files, and --to {to} is a folder; leave one out.")
    run = run_of_checkpoint(target) or needed_run_folder(target)
    config = load(run / "config.toml")

    from muster.export import Gguf
    from muster.using import export as write

    gguf = Gguf(dtype or "f16") if is_gguf else None
    proof = write(config, Path(model_of(target)), to, merge=merge, gguf=gguf)
    if json:
        print(to_json({"path": str(to), "difference": proof.difference, "moved": proof.moved}))
    else:
        print(escape_text(f"{to}: read back, {proof}"))
    return 0
