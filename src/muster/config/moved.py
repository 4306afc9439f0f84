"""Settings that lie elsewhere now: what a message says of them, and what recorded runs meant by them."""

import math
from collections.abc import Mapping

MOVED: Mapping[str, str] = {
    "optim.betas": "optim.options.betas",
    "optim.eps": "optim.options.eps",
    "optim.warmup_steps": "optim.warmup",
    "optim.warmup_ratio": "optim.warmup",
}
"""By its old path, where a setting went, with its value."""

GONE: Mapping[str, str] = {
    "data.shuffle": 'it is a way to draw. Take it out, and write data.draw = "in_order" where it was false',
    "run.table_every": "it is said as a run is started. Take it out, and use: muster train --table-every N",
}
"""By its old path, what a setting has become that is none any more."""

_OPTIONS: Mapping[str, object] = {"betas": [0.9, 0.999], "eps": 1e-8}
"""With what they were where nobody had set them."""
_WARMUPS = ("warmup_steps", "warmup_ratio")


def as_named_now(tree: Mapping[str, object]) -> dict[str, object]:
    """What a run recorded under old names, under those of now; a run that is over can't be edited."""
    tree = {name: _without_gone(name, table) for name, table in _drawn_as_now(tree).items()}
    optim = tree.get("optim")
    if not isinstance(optim, Mapping):
        return tree
    new = {name: value for name, value in optim.items() if name not in (*_OPTIONS, *_WARMUPS)}
    if any(name in optim for name in _WARMUPS):
        ratio = optim.get("warmup_ratio") or 0
        # A share of 1 was allowed; just below, it comes to the same number of steps.
        new["warmup"] = optim.get("warmup_steps") or (math.nextafter(1, 0) if ratio == 1 else ratio)
    if options := {name: optim[name] for name, usual in _OPTIONS.items() if optim.get(name, usual) != usual}:
        given = optim.get("options")
        new["options"] = {**options, **(given if isinstance(given, Mapping) else {})}
    return {**tree, "optim": new}


def _drawn_as_now(tree: Mapping[str, object]) -> Mapping[str, object]:
    """Prompts that were not shuffled are drawn in order."""
    data = tree.get("data")
    if not isinstance(data, Mapping) or data.get("shuffle") is not False:
        return tree
    return {**tree, "data": {**data, "draw": "in_order"}}


def _without_gone(section: str, table: object) -> object:
    if not isinstance(table, Mapping):
        return table
    return {name: value for name, value in table.items() if f"{section}.{name}" not in GONE}
