"""What is wrong with a run, as rules over its folder, against its own first steps; torch-free.

`muster doctor` asks them of a run, `muster train` while it goes on.
"""

from muster.doctor.course import Course, Settings
from muster.doctor.examining import (
    KINDS,
    RULES,
    WARM_START_KINDS,
    Watch,
    chosen_steps,
    course_of,
    examine,
    findings,
)
from muster.doctor.facts import StepFacts, facts_of
from muster.doctor.finding import LEVELS, Evidence, Finding, GroupRef, Kind, Level, RolloutRef, Sure
from muster.doctor.needs import NEEDS, Unasked, in_words, lacking
from muster.doctor.told import told

__all__ = [
    "KINDS",
    "LEVELS",
    "NEEDS",
    "RULES",
    "Course",
    "Evidence",
    "Finding",
    "GroupRef",
    "Kind",
    "Level",
    "RolloutRef",
    "Settings",
    "StepFacts",
    "Sure",
    "WARM_START_KINDS",
    "Unasked",
    "Watch",
    "chosen_steps",
    "course_of",
    "examine",
    "facts_of",
    "findings",
    "in_words",
    "lacking",
    "told",
]
