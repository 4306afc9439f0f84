"""What a warm start (`muster sft`) takes of a configuration: its own defaults, and what it has no use for."""

from collections.abc import Iterator, Mapping

from muster.config.describing import fields
from muster.config.fingerprints import leaves
from muster.config.messages import Problem, wrong
from muster.config.sections import WARM_START, Config

DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "reward": {"use": ()},
    "sampling": {"prompts_per_step": 8},
    "optim": {"lr": 2e-5},
}
"""Where a warm start begins elsewhere than a run that samples; and one epoch, where no length is given."""

_NO_USE: Mapping[str, str] = {
    "data.max_prompt_tokens": "model.max_tokens bounds a prompt and its answer together",
    "data.draw": "answers are not scored, so no prompt is known to teach more than another",
    "data.environment": "answers are given, and nobody is there to reply to them",
    "reward": "answers are learned, not scored; put rewards into the configuration of `muster train`",
    "sampling": "nothing is sampled; only sampling.prompts_per_step counts, the answers of a step",
    "algo": "the loss is the mean of -logprob over the answers' tokens, and that is all there is to it",
    "engine": "nothing is sampled",
    "eval.group_size": "held-out answers are given, and scored once",
    "eval.max_tokens": "held-out answers are given; model.max_tokens bounds them",
}
"""Why a section or a field means nothing here."""
_USED = frozenset({"sampling.prompts_per_step", "algo.recipe"})
_ORDER = ("data.draw", "in_order")
"""A way to draw that needs no scores."""


def with_defaults(tree: Mapping[str, object]) -> dict[str, object]:
    """The tree with a warm start's own defaults, where it is that of one."""
    algo = tree.get("algo")
    if not isinstance(algo, Mapping) or algo.get("recipe") != WARM_START:
        return dict(tree)
    filled = {**tree}
    for section, values in {**DEFAULTS, "run": _length(tree.get("run"))}.items():
        given = tree.get(section, {})
        filled[section] = {**values, **given} if isinstance(given, Mapping) else given
    return filled


def _length(run: object) -> Mapping[str, object]:
    """One epoch, unless the run says how long it is."""
    is_given = isinstance(run, Mapping) and run.keys() & {"steps", "epochs"}
    return {} if is_given else {"epochs": 1}


def useless(config: Config) -> Iterator[Problem]:
    """Every setting that is not at its default and would change nothing in a warm start."""
    defaults = {field.path: field.default for field in fields()} | {"reward.use": ()}
    for path, value in leaves(config).items():
        why = _NO_USE.get(path) or _NO_USE.get(path.partition(".")[0])
        if why is not None and path not in _USED and value != defaults.get(path) and (path, value) != _ORDER:
            yield wrong(path, value, f"nothing in a warm start: {why}; leave it out", ("algo.recipe",))
