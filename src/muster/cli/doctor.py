"""`muster doctor`."""

from typing import Annotated

from muster.cli.flags import Json, about


def doctor(
    target: Annotated[str, about("The run's name, or its folder; TRL's, or one with a metrics.jsonl, too.")],
    /,
    *,
    fail_on: Annotated[
        str | None,
        about("Exit with 3 at a finding of this level or above, note, warning or serious, or of this name."),
    ] = None,
    json: Json = False,
) -> int:
    """Say what is wrong with a run: since when, how sure, on what evidence, and what to change.

    Weighs a run against its own first steps. Works while the run is going on.

    **Examples**

    ```text
    muster doctor demo-1
    muster doctor demo-1 --fail-on serious
    muster doctor demo-1 --fail-on mode-collapse
    muster doctor demo-1 --json
    ```
    """
    from muster.cli.findings import (
        FINDINGS,
        examined_now,
        is_among,
        print_findings,
        print_limits,
        wanted_by,
    )
    from muster.cli.output import PatientConsole, print_line
    from muster.cli.targets import needed_source
    from muster.doctor import told
    from muster.store import read_events, read_meta, to_json

    source = needed_source(target)
    if source.kind == "muster":
        read_meta(source.folder)
    wanted = wanted_by(fail_on)
    looked = examined_now(source)
    names = {finding.name for finding in looked.findings}
    events = told(read_events(source.folder)) or []
    earlier = [event for event in events if event.get("name") not in names]
    if json:
        rows = [finding.to_plain() for finding in looked.findings]
        unasked = [one._asdict() for one in looked.unasked]
        folder = str(source.folder)
        print_line(to_json({"folder": folder, "findings": rows, "earlier": earlier, "unasked": unasked}))
    else:
        console = PatientConsole()
        print_findings(looked.findings, earlier, source.folder, console)
        print_limits(looked, console)
    return FINDINGS if is_among(looked.findings, wanted) else 0
