"""What is wrong with a run, as rules over its folder, against its own first steps; torch-free.

`muster doctor` asks them of a run, `muster train` while it goes on.
"""

from muster.doctor.course import Course, Settings
from muster.doctor.examining import KINDS, RULES, Watch, course_of, examine, findings
from muster.doctor.finding import LEVELS, Evidence, Finding, GroupRef, Kind, Level, RolloutRef, Sure

__all__ = [
    "KINDS",
    "LEVELS",
    "RULES",
    "Course",
    "Evidence",
    "Finding",
    "GroupRef",
    "Kind",
    "Level",
    "RolloutRef",
    "Settings",
    "Sure",
    "Watch",
    "course_of",
    "examine",
    "findings",
]
