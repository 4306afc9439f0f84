"""What a run's configuration says that the page needs; a file that can't be read says nothing."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from muster.store import CONFIG, Line
from muster.view.curves import number_of
from muster.view.growing import regular

MAX_BYTES = 2**20

CLIPS = {
    "grpo": (0.2, 0.2),
    "dr_grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "bnpo": (0.2, 0.2),
    "reinforce_pp": (0.2, 0.2),
}
"""Clip range, low and high, of the recipes that clip token by token; a test compares it with theirs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one run."""

    text: str
    """The whole file."""
    table: Line

    def get(self, section: str, key: str) -> object:
        """A setting; None where it isn't set."""
        values = self.table.get(section)
        return values.get(key) if isinstance(values, dict) else None

    @property
    def steps(self) -> int | None:
        """How many steps the run takes; None where it counts in epochs."""
        steps = self.get("run", "steps")
        return steps if isinstance(steps, int) else None

    @property
    def full_score(self) -> float:
        """The score of a rollout whose rewards are all 1: the sum of the weights."""
        weights, use = self.get("reward", "weights"), self.get("reward", "use")
        if isinstance(weights, list) and all(isinstance(weight, int | float) for weight in weights):
            return float(sum(weight for weight in weights if weight > 0)) or 1.0
        return float(len(use)) if isinstance(use, list) and use else 1.0

    @property
    def clip(self) -> dict[str, float | None] | None:
        """The bounds of the ratio, `low` and `high` as distances from 1; None where no token is clipped."""
        chosen, recipe = self.get("algo", "objective"), str(self.get("algo", "recipe") or "grpo")
        low, high = CLIPS.get(recipe, (0.2, 0.2))
        if chosen is None:
            return {"low": low, "high": high, "cap": None} if recipe in CLIPS else None
        options = chosen if isinstance(chosen, dict) else {"use": chosen}
        if options.get("use") != "clip":
            return None
        return {
            "low": number_of(options.get("low", 0.2)) or 0.0,
            "high": number_of(options.get("high", 0.2)) or 0.0,
            "cap": number_of(options.get("cap")),
        }


def read_settings(folder: Path) -> Settings:
    """The run's `config.toml`; empty where there is none or it is no TOML."""
    found = regular(folder / CONFIG)
    if found is None or found.st_size > MAX_BYTES:
        return Settings("", {})
    text = (folder / CONFIG).read_bytes().decode("utf-8", "replace")
    try:
        return Settings(text, tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError):
        return Settings(text, {})
