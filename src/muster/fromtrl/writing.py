"""The converted run as TOML, each value with the option it comes from, and what is left over."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from muster.config import Config, from_mapping
from muster.config.toml import toml_value
from muster.fromtrl.converting import evaluation, from_grpo
from muster.fromtrl.draft import Draft
from muster.fromtrl.model import from_model, from_trainer, grpo_arguments, unsloth_arguments
from muster.fromtrl.reading import Found
from muster.fromtrl.sampler import sampler

DEFAULTS: Mapping[str, object] = {
    "report_to": "none",
    "logging_steps": 10,
    "remove_unused_columns": False,
    "use_cpu": False,
    "do_train": False,
    "do_eval": False,
    "push_to_hub": False,
    "logging_strategy": "steps",
    "use_liger_kernel": False,
}
"""Values that say nothing where they are given: TRL's own."""

TABLES = (
    "model",
    "model.lora",
    "data",
    "reward",
    "sampling",
    "algo",
    "optim",
    "engine",
    "engine.options",
    "eval",
    "run",
)


class Converted(NamedTuple):
    """A run's file, and what whoever converts should read."""

    toml: str
    report: tuple[str, ...]
    config: Config


def converted(found: Found) -> Converted:
    """The run that the arguments describe; raises ConfigError where they can't be one."""
    draft = Draft()
    for call in found.repeated:
        draft.tell(f"{call} is not the first of its kind: the first one's arguments are written")
    grpo, unsloth = grpo_arguments(draft, found), unsloth_arguments(draft, found)
    from_model(draft, found, grpo, unsloth)
    sampler(draft, grpo, unsloth)
    from_grpo(draft, grpo)
    from_trainer(draft, found, grpo)
    evaluation(draft, grpo)
    unsloth.tell_rest({})
    grpo.tell_rest(DEFAULTS)
    config = from_mapping(nested(draft.settings))
    return Converted("".join(_lines(found.source, draft)), tuple(draft.report), config)


def nested(settings: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Settings by path as tables in tables."""
    tree: dict[str, dict[str, object]] = {}
    for path, value in settings.items():
        *parents, name = path.split(".")
        table: dict[str, object] = tree.setdefault(parents[0], {})
        for parent in parents[1:]:
            inner = table.setdefault(parent, {})
            assert isinstance(inner, dict)
            table = inner
        table[name] = value
    return tree


def _lines(source: str, draft: Draft) -> Iterator[str]:
    yield f"# Converted from {_plain(source)}. Each value says which option it comes from.\n"
    if draft.report:
        yield "#\n# What has no counterpart, was not a literal, or is another here:\n"
        yield from (f"# - {_plain(line)}\n" for line in draft.report)
    for table in TABLES:
        prefix = f"{table}."
        own = [path for path in draft.settings if path.startswith(prefix) and "." not in path[len(prefix) :]]
        if not own:
            continue
        yield f"\n[{table}]\n"
        for path in own:
            comment = draft.comments.get(path)
            after = f"  # {_plain(comment)}" if comment else ""
            yield f"{path[len(prefix) :]} = {toml_value(draft.settings[path])}{after}\n"


def _plain(text: str) -> str:
    """On one line, without what a terminal acts on: comments come from scripts of others."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
