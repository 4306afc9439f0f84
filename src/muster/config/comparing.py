"""Which differences between two configurations change what a run computes."""

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from muster.config.kinds import Choice
from muster.config.messages import shown
from muster.config.sections import Config

# Evaluation does not change training; the rest is about what is kept and shown, or when a run gives up.
_HARMLESS_SECTIONS = ("eval.",)
_HARMLESS = frozenset(
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
        "run.name",
        "run.save_every",
        "run.table_every",
    }
)
_LENGTH = frozenset({"run.steps", "run.epochs"})


def result_changing_differences(old: Config, new: Config) -> list[str]:
    """One line per setting whose change would make a resumed run another run; empty where none would.

    A run may be made longer or shorter where its learning rate does not depend on its length.
    """
    before, after = _leaves(old), _leaves(new)
    harmless = _HARMLESS | (_LENGTH if _is_length_free(old) and _is_length_free(new) else frozenset())
    return [
        f"{path} was {shown_or_absent(before.get(path))} and is {shown_or_absent(after.get(path))}"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
        and path not in harmless
        and not path.startswith(_HARMLESS_SECTIONS)
    ]


def _is_length_free(config: Config) -> bool:
    """No learning rate depends on how many steps there are."""
    return config.optim.schedule == "constant" and config.optim.warmup_ratio == 0


def shown_or_absent(value: object) -> str:
    """The value as TOML; `absent` for none."""
    return "absent" if value is None else shown(value)


def _leaves(config: Config) -> Mapping[str, object]:
    """Every value by its path; a table that may be absent (lora) has no leaves then."""
    return dict(_leaves_of(config, ""))


def _leaves_of(section: BaseModel, prefix: str) -> Iterator[tuple[str, object]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel) and not isinstance(value, Choice):
            yield from _leaves_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
