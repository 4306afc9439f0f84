"""A run as the rules see it: its settings, a line of metrics a step, seconds, and facts of its rollouts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from muster.doctor.baseline import Series, Shift, series_of, shift_of, window
from muster.doctor.facts import StepFacts
from muster.records import Group
from muster.rewards.naming import distinct_names, safe_name
from muster.store import Line, read_config


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the rules need of a run's configuration."""

    max_tokens: int | None = None
    has_fixed_length: bool = False
    has_environment: bool = False
    """Rollouts have turns, and are cut at more than one limit."""
    kl_coef: float = 0.0
    kl: str = "k2"
    """Estimator of the KL term."""
    has_moving_ratio: bool = False
    """The KL term stands behind a differentiable ratio."""
    kl_in: str = "loss"
    """Or `reward`."""
    is_warm_start: bool = False
    """Answers were given: nothing was sampled, and nothing has a score."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Factor of each reward, by name; empty where that isn't known."""


class HeldOut(NamedTuple):
    """One evaluation."""

    step: int
    scores: Mapping[str, float]
    """Mean score by prompt: the id of its row."""

    @classmethod
    def of(cls, step: int, groups: Sequence[Group]) -> "HeldOut":
        """From the groups of an evaluation."""
        by_prompt = {
            group.sample.id: [r.score.value for r in group.rollouts if r.score.value is not None]
            for group in groups
        }
        return cls(step, {name: sum(values) / len(values) for name, values in by_prompt.items() if values})


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a run has gone so far."""

    settings: Settings
    lines: Sequence[Line]
    """Metrics of each step of training, in order."""
    held_out: Sequence[HeldOut]
    """The first evaluation and the last."""
    timings: Sequence[Line]
    facts: Sequence[StepFacts]
    """Of all steps, or of some of a long run, the first and the last ones among them."""
    unread: Sequence[str] = ()
    """What was left out because it can't be read, and why."""
    has_rows: bool = True
    """Groups name the row of the data that their prompt is; else prompts are told apart by their text."""

    def series(self, name: str) -> Series:
        """A metric over the steps of training."""
        return series_of([line["step"] for line in self.lines], [line.get(name) for line in self.lines])

    def shift(self, name: str) -> Shift | None:
        """A metric's last steps against its first."""
        return shift_of(self.series(name))

    def of_facts(self, number: Callable[[StepFacts], float | None]) -> Series:
        """A number of the rollouts over the steps that were looked at."""
        return series_of([facts.step for facts in self.facts], [number(facts) for facts in self.facts])

    def shift_of_facts(self, number: Callable[[StepFacts], float | None]) -> Shift | None:
        """A number of the rollouts, last steps against first."""
        return shift_of(self.of_facts(number))

    @property
    def early(self) -> Sequence[StepFacts]:
        """Facts of the first steps."""
        return self.facts[: window(len(self.facts))]

    @property
    def late(self) -> Sequence[StepFacts]:
        """Facts of the last steps."""
        return self.facts[-window(len(self.facts)) :]

    @property
    def last_steps(self) -> tuple[int, ...]:
        """The last three steps that were looked at."""
        looked = tuple(facts.step for facts in self.late[-3:])
        return looked or tuple(line["step"] for line in self.lines[-3:])


def settings_of(folder: Path) -> Settings:
    """From the run's configuration; what is missing there (another trainer's run) is not known."""
    read = read_config(folder)
    sampling, algo, reward = map(read.table, ("sampling", "algo", "reward"))
    limit, coefficient, chosen = sampling.get("max_tokens"), algo.get("kl_coef"), algo.get("kl")
    kl_in = "reward" if algo.get("kl_in") == "reward" else "loss"
    kl = chosen if isinstance(chosen, dict) else {"use": chosen or ("k1" if kl_in == "reward" else "k2")}
    return Settings(
        max_tokens=limit if isinstance(limit, int) else None,
        has_fixed_length=sampling.get("ignore_eos") is True,
        has_environment=bool(read.table("data").get("environment")),
        kl_coef=float(coefficient) if isinstance(coefficient, int | float) else 0.0,
        kl=str(kl.get("use")),
        has_moving_ratio=kl.get("ratio") == "differentiable",
        kl_in=kl_in,
        is_warm_start=algo.get("recipe") == "sft",
        weights=_weights(reward),
    )


def _weights(reward: Mapping[str, object]) -> Mapping[str, float]:
    """By the names that metrics have for the rewards."""
    use = reward.get("use")
    listed = [use] if isinstance(use, str) else use if isinstance(use, list) else []
    names = distinct_names(safe_name(str(name).rpartition(":")[2]) for name in listed)
    weights = reward.get("weights")
    numbers = weights if isinstance(weights, list) and len(weights) == len(names) else [1.0] * len(names)
    return {name: float(number) for name, number in zip(names, numbers)}
