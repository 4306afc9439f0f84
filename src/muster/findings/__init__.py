"""What some graded groups say about whether a run can learn, and what to change where it can't.

`muster check` asks before a run, `muster train` after its first step.
"""

from muster.findings.rules import Finding, find, in_order
from muster.findings.seen import OTHER_SIZES, SAMPLING_LIMIT, Lengths, PartSeen, Seen, Setup, look

__all__ = [
    "OTHER_SIZES",
    "SAMPLING_LIMIT",
    "Finding",
    "Lengths",
    "PartSeen",
    "Seen",
    "Setup",
    "find",
    "in_order",
    "look",
]
