"""Programs nobody has read, run apart: under bubblewrap where it works, and under limits always.

Free of torch. What runs inside are `launcher` and `harness`; the verdict is always the caller's, from
what the program has written.
"""

from muster.sandbox.isolation import Demand, candidates, find_isolation, isolation
from muster.sandbox.limits import Limits
from muster.sandbox.running import HARNESS, Outcome, run_program
from muster.sandbox.walls import Isolation

__all__ = [
    "HARNESS",
    "Demand",
    "Isolation",
    "Limits",
    "Outcome",
    "candidates",
    "find_isolation",
    "isolation",
    "run_program",
]
