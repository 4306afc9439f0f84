"""`muster check`."""

from pathlib import Path
from typing import Annotated

from muster.cli.flags import Json, Overrides, about, as_mapping
from muster.cli.output import log_line, print_line
from muster.errors import ConfigError


def check(
    file: Annotated[
        Path | None, about("A TOML file, or the folder of a run whose configuration is to be looked at.")
    ] = None,
    /,
    *,
    groups: Annotated[
        int | None, about("Groups to sample; without it 16, or as many as take a minute.", "--groups")
    ] = None,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Say what a run will meet before it starts.

    Takes the file and flags of `train`. Samples some groups of its first steps, rehearses one update at a
    learning rate of 0, and says in numbers whether the run can learn, what it will cost, and what to
    change first. Exit code 3 where it would not learn.

    **Examples**

    ```text
    muster check run.toml
    muster check run.toml --sampling.group_size 16
    muster check run.toml --groups 64
    ```
    """
    from muster.cli.preflight import preflight_as_json, preflight_lines
    from muster.cli.train import source_of
    from muster.config import load
    from muster.store import to_json

    config = load(source_of(file), as_mapping(overrides))
    if config.is_warm_start:
        raise ConfigError(
            'algo.recipe is "sft": a warm start samples nothing that could be tried out. `muster sft` checks '
            "its answers before a model is loaded."
        )
    from muster.preflight import preflight
    from muster.run import Watchers

    found = preflight(config, num_groups=groups, watchers=Watchers(say=log_line))
    for line in [to_json(preflight_as_json(found))] if json else preflight_lines(found):
        print_line(line)
    return 0 if found.would_learn else 3
