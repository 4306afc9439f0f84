"""What a device and a network are taken to do: each an assumption, with its unit, that can be set otherwise.

The defaults of a device are figures from the data sheet of NVIDIA's H100 SXM, without sparsity; what share
of them a run reaches is a guess. None of it was measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from muster.errors import ConfigError
from muster.nearest import did_you_mean

FLOPS = {"bfloat16": 989e12, "float32": 67e12}
"""Floating-point operations a second, by the precision of the computation; float32 without TF32."""


def _assumed(unit: str, about: str, value: float | None = None) -> Any:
    """A field with its unit, what it is, and its default where it doesn't follow from the run."""
    metadata = {"unit": unit, "about": about}
    return field(metadata=metadata) if value is None else field(default=value, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The assumptions, all above 0; each field says what it is."""

    memory: float = _assumed("bytes", "memory of a device", 80e9)
    flops: float = _assumed("FLOP/s", "peak of a device, in the run's precision")
    train_use: float = _assumed("of flops", "what forward and backward reach", 0.4)
    sample_use: float = _assumed("of flops", "what sampling reaches, a token", 0.2)
    bandwidth: float = _assumed("bytes/s", "of a device's memory", 3.35e12)
    bandwidth_use: float = _assumed("of bandwidth", "what sampling and the optimizer reach", 0.5)
    link: float = _assumed("bytes/s", "from a device to the others of its node", 450e9)
    network: float = _assumed("bytes/s", "out of a node, all its adapters together", 50e9)
    share: float = _assumed("bytes/s", "of the folder through which servers are given weights", 1e9)
    latency: float = _assumed("s", "of one sum over ranks, however small", 2e-5)
    reward: float = _assumed("s", "to score a completion", 1e-3)
    completion: float = _assumed("tokens", "of a completion, mean")
    longest: float = _assumed("tokens", "of a step's longest completion")
    server_rows: float = _assumed("rows", "completions that a server samples side by side", 256)
    server_bytes: float = _assumed("bytes", "of a server's answer, a token", 100)


class Assumption(NamedTuple):
    """One of the rates, for a reader."""

    name: str
    value: float
    unit: str
    about: str
    source: Literal["assumed", "given", "measured"]
    """Given by whoever asks, or measured on this machine."""


def read_rates(
    given: Sequence[str], *, compute: str, limit: int, measured: Mapping[str, float] | None = None
) -> tuple[Rates, tuple[Assumption, ...]]:
    """The defaults for a precision and a limit of completions; what was measured, and `name=value`, win.

    Raises ConfigError for a name that there isn't, or a value that is no number above 0.
    """
    there, own = dict(measured or {}), dict(map(_pair, given))
    rates = replace(Rates(flops=FLOPS[compute], completion=limit, longest=limit), **{**there, **own})
    return rates, tuple(
        Assumption(
            item.name,
            getattr(rates, item.name),
            item.metadata["unit"],
            item.metadata["about"],
            "given" if item.name in own else "measured" if item.name in there else "assumed",
        )
        for item in fields(rates)
    )


def _pair(text: str) -> tuple[str, float]:
    names = [item.name for item in fields(Rates)]
    name, equals, number = text.partition("=")
    if name not in names:
        raise ConfigError(
            f"--assume names {name!r}, which is no assumption.{did_you_mean(name, names)} "
            f"There are: {', '.join(names)}."
        )
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or not 0 < value < math.inf:
        raise ConfigError(f"--assume {name} is {number!r}; allowed: a number above 0, such as {name}=1e9.")
    return name, value
