"""`muster show`."""

from typing import Annotated

from muster.cli.flags import Json, about


def show(
    target: Annotated[str, about("The run's name, or its folder.")],
    /,
    *,
    step: Annotated[int | None, about("Show the samples of this step; without it, the last.")] = None,
    group: Annotated[int | None, about("Show every rollout of this group of the step, from 0.")] = None,
    prompts: Annotated[bool, about("Show which prompts teach, and the hardest and easiest.")] = False,
    json: Json = False,
) -> int:
    """Show a run: its curves, held-out reward before and after, and samples.

    Works while the run is going on.

    **Examples**

    ```text
    muster show demo-1
    muster show demo-1 --step 12
    muster show demo-1 --step 12 --group 0
    muster show demo-1 --prompts
    muster show demo-1 --json
    ```
    """
    from muster.cli.prompts import print_prompts, prompts_as_json
    from muster.cli.story import print_group, print_run, print_step, run_as_json
    from muster.cli.targets import needed_run_folder, readable
    from muster.errors import ConfigError
    from muster.store import read_meta, rollout_steps, to_json

    folder = needed_run_folder(target)
    read_meta(folder)
    if prompts and (step is not None or group is not None):
        raise ConfigError("--prompts is about the whole run; leave --step and --group out.")
    with readable(folder):
        steps = rollout_steps(folder)
        if step is None and group is not None:
            step = steps[-1] if steps else 0
        if prompts and json:
            print(to_json(prompts_as_json(folder)))
        elif prompts:
            print_prompts(folder)
        elif json:
            print(to_json(run_as_json(folder, step, group)))
        elif group is not None:
            print_group(folder, step or 0, group)
        elif step is not None:
            print_step(folder, step)
        else:
            print_run(folder)
    return 0
