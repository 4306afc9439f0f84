"""Which pieces of a model compute by kernels of another package, and what was found when they were tried."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.errors import CheckpointError

MARGIN = 1.1
"""A kernel must be so many times as fast as the model's own code, so that equal machines choose equally."""


class Trial(NamedTuple):
    """How a kernel did against the model's own code."""

    refused: str = ""
    """What is wrong with it; empty where it is equal within rounding."""
    forward: float = 0.0
    """By how much a result was off at most, over the largest value."""
    backward: float = 0.0
    """The same of gradients."""
    speed: float = 0.0
    """How many times as fast it is, forward and backward."""


class Begun(NamedTuple):
    """What the run that goes on computed by kernels when it was saved."""

    version: str
    names: frozenset[str]


@dataclass(kw_only=True)
class Pieces:
    """The pieces of a model that kernels may compute, by kind, size and precision: `norm 576 float32`."""

    version: str = ""
    """Of liger-kernel; empty where nothing was tried."""
    trials: Mapping[str, Trial] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    """Those that kernels compute from now on."""
    failure: str = ""
    """Why the package that is installed can't be used."""
    begun: Begun | None = None
    """None in a run that is at its start."""

    @staticmethod
    def chosen(version: str, trials: Mapping[str, Trial]) -> "Pieces":
        """Takes what is equal and faster."""
        better = (name for name, trial in trials.items() if not trial.refused and trial.speed >= MARGIN)
        return Pieces(version=version, trials=trials, taken=frozenset(better))

    def recorded(self) -> dict[str, object]:
        """What a checkpoint and the events keep of it; nothing where no kernel computes."""
        return {"pieces": {"version": self.version, "names": sorted(self.taken)}} if self.taken else {}

    def keep(self, saved: object) -> None:
        """Computes as the checkpoint says that the run did: what it took and is equal here, however fast."""
        match saved:
            case None:
                self.begun = Begun("", frozenset())
            case {"version": str(version), "names": [*names]}:
                self.begun = Begun(version, frozenset(map(str, names)))
            case _:
                raise CheckpointError(
                    f"state.json of the checkpoint holds pieces = {saved!r}, which this version doesn't "
                    "know. Resume with the version that saved it."
                )
        equal = (name for name, trial in self.trials.items() if not trial.refused)
        self.taken = self.begun.names.intersection(equal)

    def lines(self) -> list[str]:
        """What a run says of it at its start: nothing where there is nothing to choose."""
        lines = []
        if self.failure:
            lines.append(f"liger-kernel is installed and can't be used: {self.failure}")
        if self.taken:
            lines.append(f"computed by liger-kernel {self.version}: " + self._listed(self.taken))
        if others := self.trials.keys() - self.taken:
            lines.append("not by liger-kernel, which is installed: " + self._listed(others))
        if self.begun is not None and self.taken and self.begun.version != self.version:
            lines.append(f"the run was saved under liger-kernel {self.begun.version}: {_DIFFERS}")
        if self.begun is not None and (lost := self.begun.names - self.taken):
            lines.append(
                f"the run computed {', '.join(sorted(lost))} by liger-kernel {self.begun.version}, which "
                f"{'has no equal here' if self.version else 'computes nothing here'}; the model's own "
                f"code does now: "
                f"{_DIFFERS}"
            )
        return lines

    def _listed(self, names: "frozenset[str] | set[str]") -> str:
        return ", ".join(f"{name} ({self._verdict(name, self.trials[name])})" for name in sorted(names))

    def _verdict(self, name: str, trial: Trial) -> str:
        if trial.refused:
            return trial.refused
        if self.begun is not None and name not in self.begun.names:
            return "as the run began"
        return (
            f"{trial.speed:.2f} times as fast, results off by {trial.forward:.0e}, "
            f"gradients by {trial.backward:.0e}"
        )


_DIFFERS = "from here on numbers differ by rounding from those of a run that was not interrupted"
