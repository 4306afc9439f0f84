"""`muster runs`."""

from pathlib import Path
from typing import Annotated

from muster.cli.flags import Json, about


def runs(
    folder: Annotated[Path | None, about("The folder of runs; without it, `runs`.")] = None,
    /,
    *,
    json: Json = False,
) -> int:
    """List the runs there are: how far, how good, in which state, how old.

    The one that was written to last comes first.

    **Examples**

    ```text
    muster runs
    muster runs elsewhere/runs
    muster runs --json
    ```
    """
    from muster.cli.listing import print_runs, runs_as_json
    from muster.cli.output import PatientConsole, print_line
    from muster.cli.targets import RUNS
    from muster.errors import ConfigError
    from muster.store import to_json

    place = folder or RUNS
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder} is no folder. Name one that holds runs.")
    if json:
        print_line(to_json(runs_as_json(place)))
    else:
        print_runs(place, PatientConsole())
    return 0
