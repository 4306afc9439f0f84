"""How much of the machine's time other processes took while something was measured."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

IDLE_FIELDS = (3, 4)
"""Of the first line of /proc/stat: idle, and waiting for a disk."""
COUNTED_FIELDS = 8
"""What follows is time of guests, which the first ones hold already."""


@dataclass(frozen=True)
class Watch:
    """The clocks at the start of a measurement; the machine's is None where there is no /proc."""

    wall_s: float
    busy_s: float | None
    own_s: float

    @classmethod
    def start(cls) -> "Watch":
        """The clocks now."""
        return cls(time.perf_counter(), machine_busy_s(), own_s())

    def others_share(self) -> float | None:
        """Of all processors' time since the start, what went to none of our processes.

        Processes that we started count once they have ended. Two trainers that work in turn lose to
        company unequally, so a measurement with much of it says little.
        """
        now = Watch.start()
        if self.busy_s is None or now.busy_s is None:
            return None
        others = (now.busy_s - self.busy_s) - (now.own_s - self.own_s)
        return max(others, 0.0) / ((now.wall_s - self.wall_s) * (os.cpu_count() or 1))


def machine_busy_s(stat: Path = Path("/proc/stat")) -> float | None:
    """Seconds that the processors have worked, or were taken away by the host; None without /proc."""
    try:
        first = stat.read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return None
    ticks = [int(field) for field in first.split()[1 : COUNTED_FIELDS + 1]]
    busy = sum(count for place, count in enumerate(ticks) if place not in IDLE_FIELDS)
    return busy / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    """Seconds of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
