"""Settings that lie elsewhere now: what a message says of them, and what recorded runs meant by them."""

from collections.abc import Mapping

MOVED: Mapping[str, str] = {
    "optim.betas": "optim.options.betas",
    "optim.eps": "optim.options.eps",
    "optim.warmup_steps": "optim.warmup",
    "optim.warmup_ratio": "optim.warmup",
}
"""By its old path, where a setting went, with its value."""

_OPTIONS = ("betas", "eps")
_WARMUPS = ("warmup_steps", "warmup_ratio")


def as_named_now(tree: Mapping[str, object]) -> dict[str, object]:
    """What a run recorded under old names, under those of now; a run that is over can't be edited."""
    optim = tree.get("optim")
    if not isinstance(optim, Mapping):
        return dict(tree)
    new = {name: value for name, value in optim.items() if name not in (*_OPTIONS, *_WARMUPS)}
    if any(name in optim for name in _WARMUPS):
        new["warmup"] = optim.get("warmup_steps") or optim.get("warmup_ratio") or 0
    if options := {name: optim[name] for name in _OPTIONS if name in optim}:
        given = optim.get("options")
        new["options"] = {**options, **(given if isinstance(given, Mapping) else {})}
    return {**tree, "optim": new}
