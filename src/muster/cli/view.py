"""`muster view`."""

from pathlib import Path
from typing import Annotated

from muster.cli.flags import about


def view(
    runs: Annotated[
        tuple[str, ...],
        about("Runs, by name or folder, and folders of runs; without any, the folder `runs`."),
    ] = (),
    /,
    *,
    port: Annotated[int, about("Port to answer on; 0 takes a free one.")] = 8765,
    host: Annotated[
        str, about("Address to answer on; others than this machine's own let others look.")
    ] = "127.0.0.1",
    export: Annotated[Path | None, about("Write one HTML file that opens without a server, and end.")] = None,
    steps: Annotated[str | None, about("With --export, the steps whose samples go in: 1-5,16.")] = None,
) -> int:
    """Look at runs in the browser: curves, groups, rollouts, tokens.

    Only reads, loads nothing from elsewhere, and follows a run that is going on. Opens the output folders
    of TRL, and any folder with a metrics.jsonl, too.

    **Examples**

    ```text
    muster view
    muster view demo-1 ../other/runs
    muster view demo-1 --export demo.html --steps 1-5,16
    ```
    """
    from muster.cli.inspector import export_runs, places_of, serve

    places = places_of(runs)
    if export is not None:
        export_runs(places, export, steps)
    else:
        serve(places, host, port, steps)
    return 0
