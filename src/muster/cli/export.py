"""`muster export`."""

from pathlib import Path
from typing import Annotated

from muster.cli.flags import Json, about


def export(
    target: Annotated[str, about("A run or a checkpoint in one: name or folder.")],
    /,
    *,
    to: Annotated[Path, about("Folder to write; it must not be there yet.")],
    merge: Annotated[bool, about("Fold an adapter into full weights.")] = False,
    json: Json = False,
) -> int:
    """Write a run's model to a folder that transformers, peft and vLLM load.

    What was written is read back and its logprobs compared before the folder appears.

    **Examples**

    ```text
    muster export demo-1 --to people-model
    muster export demo-1 --to people-model --merge
    muster export runs/demo-1/checkpoints/000050 --to step-50
    ```
    """
    from muster.cli.targets import model_of, needed_run_folder, run_of_checkpoint
    from muster.cli.text import escape_text, number
    from muster.config import load
    from muster.store import to_json

    run = run_of_checkpoint(target) or needed_run_folder(target)
    config = load(run / "config.toml")

    from muster.using import export as write

    difference = write(config, Path(model_of(target)), to, merge=merge)
    if json:
        print(to_json({"folder": str(to), "difference": difference}))
    else:
        said = f"{to}: read back, its logprobs differ by at most {number(difference)} nats"
        print(escape_text(said))
    return 0
