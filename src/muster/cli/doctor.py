"""`muster doctor`."""

from typing import Annotated

from muster.cli.flags import Json, about


def doctor(
    target: Annotated[str, about("The run's name, or its folder.")],
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
    from muster.cli.findings import FINDINGS, findings_in, is_among, print_findings, wanted_by
    from muster.cli.output import PatientConsole, print_line
    from muster.cli.targets import needed_run_folder
    from muster.store import read_events, read_meta, to_json

    folder = needed_run_folder(target)
    read_meta(folder)
    wanted = wanted_by(fail_on)
    found = findings_in(folder)
    names = {finding.name for finding in found}
    told = [event for event in read_events(folder) if event.get("kind") == "finding"]
    earlier = list({event["name"]: event for event in told if event.get("name") not in names}.values())
    if json:
        rows = [finding.to_plain() for finding in found]
        print_line(to_json({"folder": str(folder), "findings": rows, "earlier": earlier}))
    else:
        print_findings(found, earlier, folder, PatientConsole())
    return FINDINGS if is_among(found, wanted) else 0
