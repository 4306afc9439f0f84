"""How a run is: the one place where that is decided."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from muster.store.lock import is_being_written, was_locked_here
from muster.store.strict import Line

State = Literal["running", "silent", "killed", "stopped", "failed", "finished"]
"""`killed`: it began, did not end, and no process writes it. `silent`: the same of a run that another machine
writes, which wrote nothing for long."""

STATES = ("start", "resume", "stopped", "failure", "end")
"""Events that say how a run is."""
SILENT_S = 300.0
"""A run of another machine that wrote nothing for this long, and for many of its steps, may be over."""
_SILENT_STEPS = 20
_ENDED: dict[str, State] = {"stopped": "stopped", "failure": "failed", "end": "finished"}


def state_of(
    folder: Path, events: Sequence[Line], *, age_s: float | None = None, pace_s: float | None = None
) -> State:
    """The state of the run in this folder, from its lock and its events.

    The lock ends with its process, so on the machine that holds it nothing has to be guessed. A folder whose
    lock another machine signed is a copy, or on a network: there `age_s`, seconds since something was
    written, and `pace_s`, seconds of a step, say whether it still goes on.
    """
    if is_being_written(folder):
        return "running"
    kinds = [str(event.get("kind")) for event in events if event.get("kind") in STATES]
    if kinds and kinds[-1] in _ENDED:
        return _ENDED[kinds[-1]]
    if was_locked_here(folder) or age_s is None:
        return "killed"
    return "silent" if age_s > max(SILENT_S, _SILENT_STEPS * (pace_s or 0.0)) else "running"
