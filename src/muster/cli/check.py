"""`muster check`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.flags import Json, Overrides, about, as_mapping
from muster.cli.output import log_line, print_line
from muster.errors import ConfigError

if TYPE_CHECKING:
    from muster.config import Config


def check(
    file: Annotated[
        Path | None, about("A TOML file, or the folder of a run whose configuration is to be looked at.")
    ] = None,
    /,
    *,
    groups: Annotated[
        int | None, about("Groups to sample; without it 16, or as many as take a minute.", "--groups")
    ] = None,
    devices: Annotated[
        str | None,
        about(
            "Say by arithmetic how the run would be laid out, such as 1,8,4x8+2: devices, nodes x devices of "
            "each, and servers that sample.",
            "--devices",
        ),
    ] = None,
    assume: Annotated[
        tuple[str, ...], about("With --devices: sets an assumption, such as network=25e9.", "--assume")
    ] = (),
    measured: Annotated[
        bool, about("With --devices: take a device's pace from a check on this machine.", "--measured")
    ] = False,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Say what a run will meet before it starts.

    Takes the file and flags of `train`. Samples some groups of its first steps, rehearses one update at a
    learning rate of 0, and says in numbers whether the run can learn, what it will cost, and what to
    change first. Exit code 3 where it would not learn.

    With `--devices` nothing is run: memory, bytes over the network and seconds of a step follow from the
    model's settings and from assumptions that are listed. Exit code 3 where a layout does not fit.

    **Examples**

    ```text
    muster check run.toml
    muster check run.toml --sampling.group_size 16
    muster check run.toml --groups 64
    muster check run.toml --devices 1,8,4x8,4x8+4 --assume network=25e9
    ```
    """
    from muster.cli.train import source_of
    from muster.config import load

    config = load(source_of(file), as_mapping(overrides))
    if config.is_warm_start:
        raise ConfigError(
            'algo.recipe is "sft": a warm start samples nothing that could be tried out. `muster sft` checks '
            "its answers before a model is loaded."
        )
    if devices is not None:
        return _on_devices(config, devices, assume, groups=groups, measured=measured, json=json)
    if assume or measured:
        raise ConfigError("--assume and --measured are about other machines: name some with --devices.")
    return _here(config, groups=groups, json=json)


def _here(config: "Config", *, groups: int | None, json: bool) -> int:
    """The run on this machine, tried out."""
    from muster.cli.preflight import preflight_as_json, preflight_lines
    from muster.preflight import preflight
    from muster.run import Watchers
    from muster.store import to_json

    found = preflight(config, num_groups=groups, watchers=Watchers(say=log_line))
    for line in [to_json(preflight_as_json(found))] if json else preflight_lines(found):
        print_line(line)
    return 0 if found.would_learn else 3


def _on_devices(
    config: "Config", devices: str, assume: Sequence[str], *, groups: int | None, measured: bool, json: bool
) -> int:
    """The run on other machines, by arithmetic."""
    from muster.cli.layouts import outlook_as_json, outlook_lines
    from muster.preflight import look_ahead, preflight
    from muster.run import Watchers
    from muster.scaling import read_layouts
    from muster.store import to_json

    layouts = read_layouts(devices)
    if groups is not None and not measured:
        raise ConfigError("--groups samples here; with --devices nothing is sampled without --measured.")
    measure = partial(preflight, config, num_groups=groups, watchers=Watchers(say=log_line))
    outlook = look_ahead(config, layouts, assume, measure if measured else None, log_line)
    for line in [to_json(outlook_as_json(outlook))] if json else outlook_lines(outlook):
        print_line(line)
    return 0 if outlook.fits else 3
