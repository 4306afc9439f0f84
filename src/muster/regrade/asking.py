"""What is to be otherwise than in the run, as two configurations: the run's own, and the other one.

A run's folder may come from anywhere. Its `config.toml` can name functions to import and options with
addresses and key names in them; neither is obeyed unless it was typed, or the run is trusted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from muster.algo.build import AXES
from muster.config import Config, changed_settings, is_name, load, own_functions, shown_or_absent, toml_value
from muster.errors import ConfigError
from muster.rewards.naming import safe_name
from muster.store import CONFIG

_OF_RECIPE = (*AXES, "truncated", "overlong_zone")
"""What a recipe chooses: another recipe comes without the run's choices."""
_ALGO = frozenset({"recipe", "kl_coef", "kl_in", *_OF_RECIPE})
_REWARD = frozenset(
    {"use", "weights", "combine", "options", "convention", "in_process", "workers", "time_limit_s"}
)
_FIXED = {"minibatches", "passes", "resample", "entropy_coef"}
"""Settings of `algo` under which other tokens, or other logprobs, would have been recorded."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person typed."""

    rewards: tuple[str, ...] = ()
    """Names as `reward.use` takes them; none: the recorded scores are taken."""
    recipe: str | None = None
    """None: the run's own."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Fields of `reward` and `algo` by path, as text."""
    steps: Sequence[range] | None = None
    """None: all that are there."""
    name: str | None = None
    """Of the regrade; None: after its rewards and its recipe."""
    trusts: bool = False
    """Functions and options that the run's configuration names may be used."""


class Sides(NamedTuple):
    """The configuration of each side, and what follows from both."""

    before: Config
    """The run's own."""
    after: Config
    is_graded: bool
    """Rewards are called; else the recorded scores are taken."""
    name: str
    settings: tuple[Mapping[str, str], ...]
    """What differs, as texts by `path`, `before`, `after`."""
    notes: tuple[str, ...]


def sides_of(folder: Path, asked: Asked) -> Sides:
    """Both configurations; refuses what stored rollouts can't answer, and code that nobody typed."""
    typed = _typed(asked)
    is_graded = "reward.use" in typed
    if not typed:
        raise ConfigError(
            "nothing is asked: give --reward NAME, --recipe NAME, or a setting of reward or algo, such as "
            "--reward.weights [1.0, 0.5]."
        )
    before = load(folder / CONFIG)
    if before.is_warm_start:
        raise ConfigError(
            f"{folder} is a warm start: its answers were given, so there is nothing to grade again."
        )
    flags, notes = _flags(folder, before, typed, asked.trusts)
    after = load(folder / CONFIG, flags)
    if not asked.trusts:
        _refuse_foreign(before, after, typed)
    _refuse_unrecorded(before, after)
    name = asked.name or _name_of(after, typed)
    if not is_name(name):
        raise ConfigError(f"--name is {name!r}, which can't be the name of a file. Choose another.")
    settings = tuple(
        {
            "path": one.path,
            "before": shown_or_absent(one.before),
            "after": shown_or_absent(one.after),
        }
        for one in changed_settings(before, after)
    )
    return Sides(before, after, is_graded, name, settings, tuple(notes))


def _typed(asked: Asked) -> dict[str, str]:
    """Every setting that was typed, by path; refuses those that are about something else."""
    typed = dict(asked.settings)
    for flag, path, value in (
        ("--reward", "reward.use", _as_text(asked.rewards)),
        ("--recipe", "algo.recipe", asked.recipe),
    ):
        if value and path in typed:
            raise ConfigError(f"{flag} and --{path} are the same setting. Keep one.")
        if value:
            typed[path] = value
    for path in typed:
        section, _, rest = path.partition(".")
        key = rest.partition(".")[0]
        if section == "algo" and key in _FIXED:
            raise ConfigError(
                f"--{path} can't be regraded: under another value the run would have recorded other "
                "rollouts or logprobs. Train anew with it."
            )
        if key not in {"algo": _ALGO, "reward": _REWARD}.get(section, ()):
            raise ConfigError(
                f"--{path} is no setting that stored rollouts can be regraded by. There are reward.* "
                f"({', '.join(sorted(_REWARD))}) and algo.* ({', '.join(sorted(_ALGO))})."
            )
    return typed


def _as_text(rewards: Sequence[str]) -> str | None:
    """The names as a flag has them."""
    if not rewards:
        return None
    return rewards[0] if len(rewards) == 1 else toml_value(rewards)


def _flags(
    folder: Path, before: Config, typed: Mapping[str, str], trusts: bool
) -> tuple[dict[str, str], list[str]]:
    """What to put on top of the run's configuration, and what to say about it.

    Other rewards come without the run's weights and options, another recipe without the run's choices.
    """
    flags: dict[str, str] = {}
    notes: list[str] = []
    if "reward.use" in typed:
        own = dict.fromkeys(("reward.options", "reward.convention", "reward.in_process"), "null")
        bare = {**own, "reward.weights": "null"}
        use = load(folder / CONFIG, {**bare, "reward.use": typed["reward.use"]}).reward.use
        is_same = use == before.reward.use
        flags |= bare if not is_same else {} if trusts else own
        if is_same and not trusts and (before.reward.options or before.reward.convention):
            notes.append(
                "The run's own options of its rewards are not taken over, since its folder may come from "
                "anywhere: type them, or add --trust."
            )
    if "algo.recipe" in typed:
        flags |= dict.fromkeys((f"algo.{key}" for key in _OF_RECIPE), "null")
    return flags | dict(typed), notes


def _refuse_foreign(before: Config, after: Config, typed: Mapping[str, str]) -> None:
    """Refuses to import what only the run's folder names."""
    for place, use in own_functions(before):
        raise ConfigError(
            f"the run's {place} is {use!r}, a function of its author's: no code is run because a run's "
            "folder names it. If you trust this run, add --trust."
        )
    for place, use in own_functions(after):
        if not {place, f"{place}.use"} & typed.keys():
            raise ConfigError(f"{place} is {use!r}, which was not typed. If you trust it, add --trust.")


def _refuse_unrecorded(before: Config, after: Config) -> None:
    """Refuses a KL term where the run had no reference."""
    if after.algo.kl_coef and not before.algo.kl_coef:
        raise ConfigError(
            f"algo.kl_coef is {after.algo.kl_coef}, but this run recorded no reference logprobs: its own "
            "algo.kl_coef is 0. Regrade without a KL term, or train with one."
        )


def _name_of(after: Config, typed: Mapping[str, str]) -> str:
    """Rewards and recipe, where they were typed; else the settings that were."""
    parts = [use.rpartition(":")[2] for use in after.reward.use] if "reward.use" in typed else []
    parts += [after.algo.recipe] if "algo.recipe" in typed else []
    rest = {path: value for path, value in typed.items() if path not in ("reward.use", "algo.recipe")}
    parts += [f"{path.partition('.')[2]}-{value}" for path, value in rest.items()]
    return safe_name("-".join(parts))
