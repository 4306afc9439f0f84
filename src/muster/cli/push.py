"""`muster push`."""

from pathlib import Path
from typing import Annotated

from muster.cli.flags import Json, about


def push(
    target: Annotated[str, about("A run or a checkpoint in one: name or folder.")],
    repo: Annotated[str, about("Repository to make on the hub: owner/name.")],
    /,
    *,
    merge: Annotated[bool, about("Fold an adapter into full weights.")] = False,
    public: Annotated[bool, about("Make the repository public; it is private without.")] = False,
    json: Json = False,
) -> int:
    """Export a run's model, verified, and send it to a hub with its model card.

    Optimizer, checkpoints and rollouts are never sent. The token is that of HF_TOKEN or `hf auth login`,
    the hub that of HF_ENDPOINT.

    **Examples**

    ```text
    muster push demo-1 ada/people-model
    muster push demo-1 ada/people-model --merge --public
    ```
    """
    from muster.cli.targets import model_of, needed_run_folder, run_of_checkpoint
    from muster.cli.text import escape_text
    from muster.config import load
    from muster.store import to_json

    run = run_of_checkpoint(target) or needed_run_folder(target)
    config = load(run / "config.toml")

    from muster.using import push as send

    address, proof = send(config, Path(model_of(target)), repo, merge=merge, public=public)
    if json:
        print(to_json({"address": address, "difference": proof.difference, "moved": proof.moved}))
    else:
        print(escape_text(f"{address}: {proof}"))
    return 0
