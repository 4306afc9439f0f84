"""Samples from a file, a data set on the hub, or a task that is made."""

import re
from pathlib import Path

from muster.callables import load_callable
from muster.data.answers import Answered, to_answers
from muster.data.files import SUFFIXES
from muster.data.hub import read_hub
from muster.data.problems import Problems, Row
from muster.data.readers import read_file
from muster.data.rows import PromptForm, mapped, to_samples
from muster.data.tasks import read_made
from muster.errors import ConfigError, DataError
from muster.records import Sample
from muster.tasks import is_task

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_samples(
    path: str | Path,
    *,
    prompt: str = "prompt",
    system: str | None = None,
    raw: bool = False,
    map: str | None = None,  # noqa: A002 - the setting's name
    subset: str | None = None,
    split: str = "train",
) -> list[Sample]:
    """The samples of a file, of a task (`reasoning_gym:...`), or else of the hub's data set `owner/name`.

    A prompt of text is stripped and becomes the user's message; with `raw` it stays as it is. All
    columns but the prompt's go to the rewards; null, NaN and absent are None. One DataError names
    everything that is wrong with the rows.
    """
    form = _form(prompt, system, raw)
    problems = Problems(str(path))
    return to_samples(_mapped_rows(path, map, subset, split, problems), form, problems)


def load_answers(
    path: str | Path,
    *,
    prompt: str = "prompt",
    completion: str = "completion",
    system: str | None = None,
    raw: bool = False,
    map: str | None = None,  # noqa: A002 - the setting's name
    subset: str | None = None,
    split: str = "train",
) -> list[Answered]:
    """Prompts with the answers to learn, from the same places as `load_samples`.

    A row holds a prompt and its answer in two columns, or a conversation in `messages`, of which every turn
    of the assistant is an answer. One DataError names everything that is wrong with the rows.
    """
    form = _form(prompt, system, raw)
    problems = Problems(str(path))
    return to_answers(_mapped_rows(path, map, subset, split, problems), form, completion, problems)


def _form(prompt: str, system: str | None, raw: bool) -> PromptForm:
    if raw and system is not None:
        raise ConfigError(
            "data.system is set, but data.raw gives the model no chat. Leave one of the two out."
        )
    return PromptForm(column=prompt, system=system, raw=raw)


def _mapped_rows(
    path: str | Path,
    map: str | None,  # noqa: A002 - the setting's name
    subset: str | None,
    split: str,
    problems: Problems,
) -> list[Row]:
    """The rows as they were read, or as the user's function makes them; raises where some can't be."""
    function = load_callable(map) if map else None
    rows = _rows(path, subset, split, problems)
    problems.refuse_if_any()
    if function:
        rows = list(mapped(rows, function, problems))
        problems.refuse_if_any()
    return rows


def _rows(path: str | Path, subset: str | None, split: str, problems: Problems) -> list[Row]:
    """Rows of the task, of the file, or of the hub's data set of that name."""
    if is_task(path):
        return list(read_made(str(path)))
    if _is_hub_id(path):
        return list(read_hub(str(path), subset, split))
    if subset is not None:
        raise DataError(f"{path}: is a file, which has no subset {subset!r}. Leave data.subset out.")
    return read_file(Path(path).expanduser(), problems)


def _is_hub_id(path: str | Path) -> bool:
    """The path names a data set on the hub: `owner/name`, and no file has that name."""
    if not isinstance(path, str) or not _HUB_ID.fullmatch(path) or path.lower().endswith((*SUFFIXES, ".gz")):
        return False
    return not Path(path).exists()
