"""`muster compare`."""

from typing import Annotated

from muster.cli.flags import Json, about


def compare(
    first: Annotated[str, about("A run's name, or its folder.")],
    second: Annotated[str, about("Another run's.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Set two runs beside each other: settings that differ, curves, held-out difference, the same prompts.

    The held-out difference is that of the last evaluations, with its interval: prompt by prompt where the
    prompts are the same.

    **Examples**

    ```text
    muster compare demo-1 demo-2
    muster compare demo-1 demo-2 --json
    ```
    """
    from muster.cli.comparison import comparison_as_json, print_comparison, side_of
    from muster.cli.output import PatientConsole, print_line
    from muster.cli.targets import needed_run_folder, readable
    from muster.store import read_meta, to_json

    folders = [needed_run_folder(target) for target in (first, second)]
    sides = []
    for folder in folders:
        read_meta(folder)
        with readable(folder):
            sides.append(side_of(folder))
    one, other = sides
    if json:
        print_line(to_json(comparison_as_json(one, other)))
    else:
        print_comparison(one, other, PatientConsole())
    return 0
