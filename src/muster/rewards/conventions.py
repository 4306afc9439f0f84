"""How a reward function wants to be called, told by the names of its parameters.

completion   f(completion, **columns) -> float | None                            Muster's own
batch        f(prompts, completions, completion_ids, **columns) -> list          TRL's
verl         compute_score(data_source, solution_str, ground_truth, extra_info) -> float | {"score": ...}
answer       f(text, answer), by position, whatever the names                    only where it is asked for

A function gets the arguments its signature names, and all columns where it takes `**kwargs`.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal, NamedTuple

from muster.errors import RewardError
from muster.rewards.naming import function_name

Convention = Literal["completion", "batch", "answer", "verl"]

COMPLETION_NAMES = frozenset(
    {
        "completion",
        "prompt",
        "prompt_text",
        "messages",
        "plain_text",
        "completion_ids",
        "episode",
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
VERL_NAMES = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"})
"""What verl hands to `compute_score`; it gets no columns beside them."""
TRUTH_COLUMNS = ("reward_model", "ground_truth", "answer")
"""Where verl's ground truth is found, in this order; in the first under the key `ground_truth`."""

SUPPLIED: Mapping[Convention, frozenset[str]] = {
    "completion": COMPLETION_NAMES,
    "answer": COMPLETION_NAMES,
    "batch": BATCH_NAMES,
    "verl": VERL_NAMES,
}
"""By convention the parameters that we supply."""

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
    renamed: tuple[tuple[str, str], ...] = ()
    """Parameters that go by a name of their own, with the one they stand for."""


def read_signature(function: Callable[..., object], convention: Convention | None = None) -> Signature:
    """What the function asks for; RewardError where its parameters don't fit the given convention, or any."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"Reward {function_name(function)}: its parameters can't be read ({error}). Wrap it: "
            "def reward(completion, **columns): ..."
        ) from error
    chosen = convention or _convention(function, parameters)
    # What a partial has bound is its author's choice; a column of that name doesn't undo it.
    bound = function.keywords if isinstance(function, functools.partial) else {}
    named = [p for p in parameters.values() if p.kind not in _VAR and p.name not in bound]
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    renamed = _renamed(function, chosen, [p.name for p in named], takes_all)
    ours = SUPPLIED[chosen]
    asked = [p for p in named if p.name not in ours and p.name not in dict(renamed)]
    # TRL and verl hand everything to everyone, so their rewards read `kwargs["prompts"]`; ours get the
    # columns alone.
    everything = takes_all and chosen in ("batch", "verl")
    supplied = ours - bound.keys() if everything else {p.name for p in named if p.name in ours}
    stands_for_answer = "answer" in dict(renamed).values()
    return Signature(
        convention=chosen,
        positional=tuple(p.name for p in named if p.kind is _POSITIONAL_ONLY),
        required=(
            *(["answer"] if stands_for_answer else []),
            *(p.name for p in asked if p.default is p.empty),
        ),
        optional=tuple(p.name for p in asked if p.default is not p.empty),
        supplied=tuple(sorted(supplied)),
        takes_all=takes_all and chosen != "verl",
        renamed=renamed,
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
    ours = SUPPLIED[signature.convention]
    wanted = columns if signature.takes_all else (*signature.required, *signature.optional)
    arguments = {name: columns[name] for name in wanted if name in columns and name not in ours}
    arguments.update(options)
    for parameter, name in signature.renamed:
        arguments[parameter] = supplied[name]() if name in ours else arguments.pop(name, None)
    arguments.update({name: supplied[name]() for name in signature.supplied})
    before = [arguments.pop(name) for name in _leading(signature.positional, arguments)]
    return function(*before, **arguments)


def missing_columns(
    signature: Signature, columns: Collection[str], options: Collection[str]
) -> Iterator[str]:
    """Parameters that neither a column nor an option will fill."""
    yield from (name for name in signature.required if name not in columns and name not in options)
    asks_truth = signature.convention == "verl" and "ground_truth" in signature.supplied
    if asks_truth and not any(name in columns for name in TRUTH_COLUMNS):
        yield "ground_truth"


def _leading(names: tuple[str, ...], arguments: Mapping[str, object]) -> list[str]:
    """The names up to the first for which there is no argument: its default, and all after, stay."""
    gap = next((index for index, name in enumerate(names) if name not in arguments), len(names))
    return list(names[:gap])


def _convention(function: Callable[..., object], parameters: Mapping[str, object]) -> Convention:
    has_one, has_many = "completion" in parameters, "completions" in parameters
    if has_one and not has_many:
        return "completion"
    # TRL's rewards about length or prompts name nothing else of it.
    if has_many != has_one or (not has_one and {"completion_ids", "prompts"} & parameters.keys()):
        return "batch"
    if "solution_str" in parameters and not has_one:
        return "verl"
    found = ", ".join(parameters) or "none"
    problem = "asks for both `completion` and `completions`" if has_one else "asks for no completion"
    name = function_name(function)
    raise RewardError(
        f"Reward {name} {problem} (its parameters: {found}). Name a parameter `completion` "
        "(one text in, a number out) or `completions` (all of a step in, a list of numbers out), "
        f'or say how it is called: reward.convention.{name} = "answer".'
    )


def _renamed(
    function: Callable[..., object], convention: Convention, names: list[str], takes_all: bool
) -> tuple[tuple[str, str], ...]:
    """The leading parameters of a function that was given its convention in place of the right names."""
    wanted = {"completion": ["completion"], "answer": ["completion", "answer"]}.get(convention, [])
    if set(wanted) <= set(names):
        return ()
    if len(names) < len(wanted):
        raise RewardError(
            f"Reward {function_name(function)} has the parameters {', '.join(names) or 'none'}, but the "
            f"convention {convention!r} passes {' and '.join(wanted)} by position. Give it that many."
        )
    return tuple((name, stands) for name, stands in zip(names, wanted, strict=False) if name != stands)
