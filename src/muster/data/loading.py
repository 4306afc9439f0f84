"""Samples from a file, a data set on the hub, or a task that is made."""

import re
from pathlib import Path

from muster.callables import load_callable
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
    if raw and system is not None:
        raise ConfigError(
            "data.system is set, but data.raw gives the model no chat. Leave one of the two out."
        )
    function = load_callable(map) if map else None
    problems = Problems(str(path))
    rows = _rows(path, subset, split, problems)
    if function:
        problems.refuse_if_any()
        rows = list(mapped(rows, function, problems))
    return to_samples(rows, PromptForm(column=prompt, system=system, raw=raw), problems)


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
