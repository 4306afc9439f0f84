"""Settings that have another name now: what a message says of them, and what recorded runs meant by them."""

from collections.abc import Mapping

MOVED: Mapping[str, str] = {
    "optim.warmup_steps": "optim.warmup, with the same number",
    "optim.warmup_ratio": "optim.warmup, with the same number: below 1 it is a share of the run",
}
"""By its old path, where a setting went."""


def as_named_now(tree: Mapping[str, object]) -> dict[str, object]:
    """What a run recorded under old names, under those of now; a run that is over can't be edited."""
    optim = tree.get("optim")
    if not isinstance(optim, Mapping) or not optim.keys() & {"warmup_steps", "warmup_ratio"}:
        return dict(tree)
    rest = {name: value for name, value in optim.items() if name not in ("warmup_steps", "warmup_ratio")}
    warmup = optim.get("warmup_steps") or optim.get("warmup_ratio") or 0
    return {**tree, "optim": {"warmup": warmup, **rest}}
