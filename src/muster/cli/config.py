"""`muster config`."""

from pathlib import Path
from typing import Annotated

from muster.cli.flags import Json, Overrides, about, as_mapping


def config(
    file: Annotated[Path | None, about("A TOML file to check and resolve.")] = None,
    /,
    *,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Print every setting: what it is, what it may be, and its value.

    Without a file and flags, the defaults. The text is TOML, with comments.

    **Examples**

    ```text
    muster config
    muster config run.toml --optim.lr 2e-6
    muster config --json
    ```
    """
    from muster.config import explained_rows, explained_toml, load
    from muster.store import to_json

    settings = as_mapping(overrides)
    resolved = load(file, settings) if file or settings else None
    print(to_json(explained_rows(resolved)) if json else explained_toml(resolved), end="\n" if json else "")
    return 0
