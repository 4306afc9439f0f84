"""Which differences between two configurations change what a run computes."""

from collections.abc import Mapping
from typing import NamedTuple

from muster.config.fingerprints import by_content, edited_files, leaves
from muster.config.messages import shown
from muster.config.sections import Config

# Evaluation does not change training; the rest is about what is kept and shown, or when a run gives up.
_SECTIONS = ("eval.",)
HARMLESS = frozenset(
    {
        "data.eval_path",
        "data.eval_split",
        "engine.max_mismatch",
        "optim.max_skipped",
        "reward.in_process",
        "reward.max_failed_share",
        "reward.time_limit_s",
        "reward.workers",
        "run.dir",
        "run.keep",
        "run.layout",
        "run.name",
        "run.on_full_disk",
        "run.pause_on",
        "run.save_every",
        "run.trackers",
    }
)
# A reward that broke a run is mended before the run goes on. What it scored before stays as it is.
_MAY_BE_EDITED = frozenset({"reward.use"})
_LENGTH = frozenset({"run.steps", "run.epochs"})
# Where servers are, and what memory vLLM takes: a run may go on with others.
_OF_VLLM = frozenset({"engine.options"})


class Changed(NamedTuple):
    """A setting that two configurations have otherwise; None stands for a table that is absent."""

    path: str
    before: object
    after: object


def changed_settings(old: Config, new: Config) -> list[Changed]:
    """Every setting that differs, in the order of the sections."""
    before, after = leaves(old), leaves(new)
    return [
        Changed(path, before.get(path), after.get(path))
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]


class Differences(NamedTuple):
    """How two configurations differ, a line for each setting."""

    changing: tuple[str, ...]
    """What would make a resumed run another run."""
    harmless: tuple[str, ...]


def compare(
    old: Config,
    new: Config,
    before: Mapping[str, str] | None = None,
    after: Mapping[str, str] | None = None,
) -> Differences:
    """The differences, of the settings and of the files that they name.

    `before` and `after` are the contents of those files, as `fingerprints` gives them: a file that was
    moved is the same, and one that was edited is another; but a reward may be edited. A run may be made
    longer or shorter where its learning rate does not depend on its length.
    """
    harmless = HARMLESS | (_LENGTH if _is_length_free(old) and _is_length_free(new) else frozenset())
    harmless |= _OF_VLLM if old.engine.kind == new.engine.kind != "local" else frozenset()
    olds, news = leaves(old), leaves(new)
    changing: list[str] = []
    rest: list[str] = []
    for path in {**olds, **news}:
        was, now = olds.get(path), news.get(path)
        text = f"{path} was {shown_or_absent(was)} and is {shown_or_absent(now)}"
        is_harmless = path in harmless or path.startswith(_SECTIONS) or _is_smaller_budget(path, was, now)
        contents = by_content(path, was, before or {}), by_content(path, now, after or {})
        if was == now:
            edited = edited_files(path, now, before or {}, after or {})
            texts = [f"{path}: the content of {file} was another" for file in edited]
            is_harmless |= path in _MAY_BE_EDITED
        elif contents[0] == contents[1]:
            texts, is_harmless = [f"{text}, with the same content"], True
        elif contents[0] != was and contents[1] != now:
            texts = [f"{text}, with another content"]
        else:
            texts = [text]
        (rest if is_harmless else changing).extend(texts)
    return Differences(tuple(changing), tuple(rest))


def _is_smaller_budget(path: str, was: object, now: object) -> bool:
    """Smaller micro-batches, by which a run without enough memory goes on: equal gradients, to rounding."""
    return path == "run.budget_tokens" and isinstance(now, int) and (not isinstance(was, int) or now < was)


def _is_length_free(config: Config) -> bool:
    """No learning rate depends on how many steps there are."""
    return config.optim.schedule == "constant" and not 0 < config.optim.warmup < 1


def shown_or_absent(value: object) -> str:
    """The value as TOML; `absent` for none."""
    return "absent" if value is None else shown(value)
