"""The rewards that come with Muster, by name, and what the names need to be installed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from muster.errors import ConfigError
from muster.rewards.code import code
from muster.rewards.episodes import environment
from muster.rewards.formats import tagged
from muster.rewards.json_extraction import LEVELS as EXTRACTION_LEVELS
from muster.rewards.json_extraction import json_extraction
from muster.rewards.json_schema import LEVELS as SCHEMA_LEVELS
from muster.rewards.json_schema import json_schema
from muster.rewards.judge import judge
from muster.rewards.language import language
from muster.rewards.lengths import brevity, length, overlong, repetition
from muster.rewards.math_equal import math_equal
from muster.rewards.numeric import number
from muster.rewards.reasoning_gym import reasoning_gym
from muster.rewards.reward import Reward
from muster.rewards.sentiment import sentiment
from muster.rewards.texts import char_count, contains_answer, exact, regex
from muster.sandbox import isolation

_YES_NO = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """A reward that comes with Muster; its keyword-only parameters are options, never columns."""

    function: Callable[..., object]
    levels: tuple[float, ...] = ()
    """The values it gives, where they are few."""
    column_options: tuple[str, ...] = ()
    """Options whose value is the name of a column."""
    extra: str | None = None
    """The extra of muster-rl that has what it imports; None where that is there anyway."""
    imports: tuple[str, ...] = ()
    """The modules of the extra."""


BUILTINS: dict[str, Builtin] = {
    "brevity": Builtin(function=brevity),
    "char_count": Builtin(function=char_count),
    "code": Builtin(function=code),
    "contains_answer": Builtin(function=contains_answer, levels=_YES_NO),
    "environment": Builtin(function=environment),
    "exact": Builtin(function=exact, levels=_YES_NO),
    "format": Builtin(function=tagged, levels=_YES_NO),
    "json_extraction": Builtin(function=json_extraction, levels=EXTRACTION_LEVELS, column_options=("text",)),
    "json_schema": Builtin(
        function=json_schema,
        levels=SCHEMA_LEVELS,
        column_options=("column",),
        extra="schema",
        imports=("jsonschema",),
    ),
    "judge": Builtin(function=judge, column_options=("reference",)),
    "language": Builtin(function=language, extra="language", imports=("py3langid",)),
    "length": Builtin(function=length),
    "math": Builtin(function=math_equal, levels=_YES_NO, extra="math", imports=("math_verify", "antlr4")),
    "number": Builtin(function=number, levels=_YES_NO),
    "overlong": Builtin(function=overlong),
    "reasoning_gym": Builtin(function=reasoning_gym, extra="tasks", imports=("reasoning_gym",)),
    "regex": Builtin(function=regex, levels=_YES_NO),
    "repetition": Builtin(function=repetition),
    "sentiment": Builtin(function=sentiment),
}


def check_installed(name: str, builtin: Builtin) -> None:
    """Refuses a reward whose extra is missing; for before any model loads."""
    missing = [module for module in builtin.imports if find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"reward.use names {name!r}, which needs {' and '.join(missing)}. "
            f"Install it: pip install 'muster-rl[{builtin.extra}]'."
        )


def isolations(rewards: Sequence[Reward]) -> dict[str, str]:
    """What stands around model-written code, by the reward that runs it.

    RewardError where that is less than a reward's option `isolation` demands.
    """
    return {
        reward.name: isolation("bubblewrap" if reward.options["isolation"] == "bubblewrap" else "any")
        for reward in rewards
        if reward.function is code
    }
