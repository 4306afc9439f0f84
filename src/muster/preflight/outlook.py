"""A run on other machines: how it would be laid out, what that takes, and where more devices stop helping.

By arithmetic from what was counted (`outline`) and what is assumed; or from the paces that a check measured
here, as if every device were this one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.assemble import Say
from muster.config import Config
from muster.errors import ConfigError
from muster.preflight.outline import model_of, work_of
from muster.preflight.report import Preflight
from muster.scaling import (
    Assumption,
    Layout,
    Limit,
    Memory,
    Model,
    Paces,
    Step,
    Work,
    assumed_paces,
    curve,
    limit_of,
    memory_of,
    read_rates,
    step_of,
)

IN_PACES = ("flops", "train_use", "sample_use", "bandwidth", "bandwidth_use", "reward")
"""What isn't assumed where paces were measured."""
PER_NODE = 8
"""Devices of a node on the curve, unless a layout that is asked for has more than one."""


@dataclass(frozen=True, kw_only=True)
class Laid:
    """The run on one layout."""

    step: Step
    memory: Memory
    fits: bool
    """In the memory of a device."""
    speedup: float
    """Against one device."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The run on every layout that was asked for."""

    model: Model
    work: Work
    assumptions: tuple[Assumption, ...]
    paces: Paces
    is_measured: bool
    """The paces are those of this machine."""
    laid: tuple[Laid, ...]
    per_node: int
    """Devices of a node on the curve, at most."""
    curve: tuple[Step, ...]
    """On 1, 2, 4 ... devices that sample and train."""
    limit: Limit | None
    """Where the curve flattens; None where it did not."""

    @property
    def fits(self) -> bool:
        """Every layout that was asked for."""
        return all(laid.fits for laid in self.laid)


def look_ahead(
    config: Config,
    layouts: Sequence[Layout],
    assumed: Sequence[str],
    measure: Callable[[], Preflight] | None,
    say: Say,
) -> Outlook:
    """The run on these layouts, under the assumptions given as `name=value`, or by paces that are measured.

    Raises ConfigError for what can't be counted, and where nothing could be measured.
    """
    if measure is not None:
        _refuse_both(assumed)
    model, work = model_of(config, say), work_of(config, say)
    if work.divides and (odd := next((layout for layout in layouts if layout.servers), None)):
        raise ConfigError(
            f'--devices names {odd}, and run.layout is "shard": weights that are divided are sampled by the '
            "ranks themselves. Leave the servers out."
        )
    several = next((layout for layout in layouts if layout.ranks > 1), None)
    if several and config.engine.ahead and config.engine.kind != "vllm":
        raise ConfigError(
            f"--devices names {several}, and engine.ahead is {config.engine.ahead} with engine.kind "
            f"{config.engine.kind!r}, which several ranks refuse: only servers sample ahead for them. Name "
            'layouts of one device that trains, set engine.kind = "vllm", or engine.ahead = 0.'
        )
    # What is misspelt is refused before minutes of sampling.
    read_rates(assumed, compute=model.compute, limit=work.max_tokens)
    found = None if measure is None else measure()
    rates, assumptions = read_rates(
        assumed, compute=model.compute, limit=work.max_tokens, measured=_seen(found) if found else None
    )
    paces = assumed_paces(model, work, rates) if found is None else _measured(found)
    most = max(layout.devices for layout in layouts)
    per_node = most if most > 1 else PER_NODE
    steps = curve(model, work, rates, paces, per_node=per_node)

    def laid(layout: Layout) -> Laid:
        step, memory = step_of(model, work, rates, paces, layout), memory_of(model, work, rates, layout)
        fits = max(memory.peak, memory.server or 0) <= rates.memory
        return Laid(step=step, memory=memory, fits=fits, speedup=steps[0].seconds / step.seconds)

    return Outlook(
        model=model,
        work=work,
        assumptions=tuple(item for item in assumptions if found is None or item.name not in IN_PACES),
        paces=paces,
        is_measured=found is not None,
        laid=tuple(map(laid, layouts)),
        per_node=per_node,
        curve=tuple(steps),
        limit=limit_of(steps),
    )


def _refuse_both(assumed: Sequence[str]) -> None:
    """Refuses an assumption that a measurement takes the place of."""
    if odd := [name for text in assumed if (name := text.partition("=")[0]) in IN_PACES]:
        raise ConfigError(f"--assume {odd[0]} has no use with --measured, which measures it. Leave one out.")


def _seen(found: Preflight) -> dict[str, float]:
    """What the check saw of lengths and memory."""
    return {
        "memory": float(found.costs.available_bytes),
        "completion": found.seen.lengths.mean or found.costs.longest_tokens,
        "longest": found.costs.longest_tokens,
    }


def _measured(found: Preflight) -> Paces:
    if found.costs.paces is None:
        raise ConfigError(
            "--measured has nothing to measure an update by: no rollout of those sampled would count. Leave "
            "it out, or see what `muster check` says without --devices."
        )
    return found.costs.paces
