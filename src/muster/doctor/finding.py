"""What a rule finds: what, since when, how sure, on what evidence, what it means and what to change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Level = Literal["note", "warning", "serious"]
LEVELS: tuple[Level, ...] = ("note", "warning", "serious")
"""The least important first."""

Sure = Literal["possible", "likely", "certain"]
"""`certain` is counted, or so strong that it can't be chance; the others are tests over the steps."""


class RolloutRef(NamedTuple):
    """Where to look a rollout up: `muster show RUN --step STEP --group PLACE`."""

    step: int
    place: int
    """Of the group in its step, from 0."""
    group: str
    rollout: int
    """Of the rollout in its group, from 0."""


class GroupRef(NamedTuple):
    """Where to look a group up."""

    step: int
    place: int
    group: str
    sample: str
    """Id of the row of the data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a finding rests on."""

    numbers: Mapping[str, float | str]
    """By what they are; those of the run's first steps are called `... at first`."""
    steps: tuple[int, ...] = ()
    groups: tuple[GroupRef, ...] = ()
    rollouts: tuple[RolloutRef, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What is the same in every finding of a rule; its page is `docs/findings/NAME.md`."""

    name: str
    level: Level
    means: str
    change: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong with a run, or looks so."""

    kind: Kind
    what: str
    """In words and numbers."""
    since: int
    """The step at which it began."""
    sure: Sure
    how: str
    """The test or the count that says so."""
    evidence: Evidence = field(default_factory=lambda: Evidence(numbers={}))
    is_mild: bool = False
    """Less than the rule's level: a note."""

    @property
    def name(self) -> str:
        """That of its kind: what `--fail-on` and `run.pause_on` take."""
        return self.kind.name

    @property
    def level(self) -> Level:
        """How much it matters."""
        return "note" if self.is_mild else self.kind.level

    def to_plain(self) -> dict[str, object]:
        """As plain data, in the order in which it is told."""
        seen = self.evidence
        return {
            "name": self.name,
            "level": self.level,
            "what": self.what,
            "since": self.since,
            "sure": self.sure,
            "how": self.how,
            "evidence": {
                "numbers": dict(seen.numbers),
                "steps": list(seen.steps),
                "groups": [group._asdict() for group in seen.groups],
                "rollouts": [rollout._asdict() for rollout in seen.rollouts],
            },
            "means": self.kind.means,
            "change": self.kind.change,
        }
