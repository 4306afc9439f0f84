"""How a reward function wants to be called, told by the names of its parameters.

Per completion:  f(completion, **columns) -> float | None
Per batch (TRL): f(prompts, completions, completion_ids, **columns) -> list[float | None]

A function gets the arguments its signature names, and all columns where it takes `**kwargs`.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal, NamedTuple

from muster.errors import RewardError
from muster.rewards.naming import function_name

Convention = Literal["completion", "batch"]

COMPLETION_NAMES = frozenset(
    {
        "completion",
        "prompt",
        "prompt_text",
        "messages",
        "plain_text",
        "completion_ids",
        "finish_reason",
        "sample_id",
        "columns",
        "trainer_state",
        "log_metric",
    }
)
"""What a per-completion reward may ask for beside columns; a column of such a name is hidden."""
BATCH_NAMES = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
)
"""What a per-batch reward may ask for beside columns; a column of such a name is hidden."""

_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VAR = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Signature(NamedTuple):
    """What a reward function asks for."""

    convention: Convention
    positional: tuple[str, ...]
    """Parameters that can't be passed by name."""
    required: tuple[str, ...]
    """Parameters without a default that are not ours to supply: columns, or options."""
    optional: tuple[str, ...]
    """The same with a default."""
    supplied: tuple[str, ...]
    """Parameters that we supply."""
    takes_all: bool
    """It has `**kwargs`: it gets every column, and in the batch convention all that we supply."""


def read_signature(function: Callable[..., object]) -> Signature:
    """What the function asks for; RewardError where its parameters fit neither convention."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"Reward {function_name(function)}: its parameters can't be read ({error}). Wrap it: "
            "def reward(completion, **columns): ..."
        ) from error
    convention = _convention(function, parameters)
    ours = COMPLETION_NAMES if convention == "completion" else BATCH_NAMES
    # What a partial has bound is its author's choice; a column of that name doesn't undo it.
    bound = function.keywords if isinstance(function, functools.partial) else {}
    named = [p for p in parameters.values() if p.kind not in _VAR and p.name not in bound]
    asked = [p for p in named if p.name not in ours]
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    # TRL hands everything to everyone, so its rewards read `kwargs["prompts"]`; ours get the columns alone.
    everything = convention == "batch" and takes_all
    supplied = ours - bound.keys() if everything else {p.name for p in named if p.name in ours}
    return Signature(
        convention=convention,
        positional=tuple(p.name for p in named if p.kind is _POSITIONAL_ONLY),
        required=tuple(p.name for p in asked if p.default is p.empty),
        optional=tuple(p.name for p in asked if p.default is not p.empty),
        supplied=tuple(sorted(supplied)),
        takes_all=takes_all,
    )


def call(
    function: Callable[..., object],
    signature: Signature,
    *,
    supplied: Mapping[str, Callable[[], object]],
    columns: Mapping[str, object],
    options: Mapping[str, object],
) -> object:
    """What the function returns; options win over columns, and ours over both.

    What we supply is made only where it is asked for.
    """
    ours = COMPLETION_NAMES if signature.convention == "completion" else BATCH_NAMES
    wanted = columns if signature.takes_all else (*signature.required, *signature.optional)
    arguments = {name: columns[name] for name in wanted if name in columns and name not in ours}
    arguments.update(options)
    arguments.update({name: supplied[name]() for name in signature.supplied})
    before = [arguments.pop(name) for name in _leading(signature.positional, arguments)]
    return function(*before, **arguments)


def missing_columns(
    signature: Signature, columns: Collection[str], options: Collection[str]
) -> Iterator[str]:
    """Parameters that neither a column nor an option will fill."""
    return (name for name in signature.required if name not in columns and name not in options)


def _leading(names: tuple[str, ...], arguments: Mapping[str, object]) -> list[str]:
    """The names up to the first for which there is no argument: its default, and all after, stay."""
    gap = next((index for index, name in enumerate(names) if name not in arguments), len(names))
    return list(names[:gap])


def _convention(function: Callable[..., object], parameters: Mapping[str, object]) -> Convention:
    has_one, has_batch = "completion" in parameters, "completions" in parameters
    if has_one != has_batch:
        return "completion" if has_one else "batch"
    found = ", ".join(parameters) or "none"
    problem = "asks for both `completion` and `completions`" if has_one else "asks for no completion"
    raise RewardError(
        f"Reward {function_name(function)} {problem} (its parameters: {found}). Name a parameter "
        "`completion` (one text in, a number out) or `completions` (all of a step in, a list of numbers out)."
    )
