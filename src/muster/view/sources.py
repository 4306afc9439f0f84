"""Which runs there are to look at, and by whom they were written."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from muster.store import META, METRICS
from muster.view.growing import regular

Kind = Literal["muster", "trl", "metrics"]

MAX_RUNS = 2_000
"""Folders of a folder of runs that are looked at."""
TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True, slots=True)
class Source:
    """A folder that holds a run."""

    id: str
    """Names the run to the page: it follows from the folder, and no file can be named with it."""
    name: str
    folder: Path
    kind: Kind


def find_sources(places: Sequence[Path]) -> list[Source]:
    """The runs at these places: each a run, or a folder of runs."""
    found: dict[str, Source] = {}
    for place in places:
        for source in _at(place):
            found.setdefault(source.id, source)
    return list(found.values())


def source_of(folder: Path) -> Source | None:
    """The run in this folder; None where it holds none."""
    kind = kind_of(folder)
    return None if kind is None else _source(folder, kind)


def _at(place: Path) -> Iterator[Source]:
    if (source := source_of(place)) is not None:
        yield source
        return
    for folder in _folders(place):
        if (source := source_of(folder)) is not None:
            yield source


def _folders(place: Path) -> Iterable[Path]:
    try:
        inside = sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:
        return []
    return inside[:MAX_RUNS]


def kind_of(folder: Path) -> Kind | None:
    """Who wrote the run in this folder; None where it holds none."""
    if regular(folder / META) is not None:
        return "muster"
    if trainer_state(folder) is not None or (folder / "completions").is_dir():
        return "trl"
    return "metrics" if regular(folder / METRICS) is not None else None


def trainer_state(folder: Path) -> Path | None:
    """The newest state that a trainer of the `transformers` family left: its own, or a checkpoint's."""
    if regular(folder / TRAINER_STATE) is not None:
        return folder / TRAINER_STATE
    saved = {
        int(number): path
        for path in folder.glob(f"checkpoint-*/{TRAINER_STATE}")
        if (number := path.parent.name.removeprefix("checkpoint-")).isdecimal() and regular(path)
    }
    return saved[max(saved)] if saved else None


def _source(folder: Path, kind: Kind) -> Source:
    whole = folder.absolute()
    digest = hashlib.sha256(str(whole).encode("utf-8", "surrogateescape")).hexdigest()
    return Source(id=digest[:12], name=whole.name, folder=whole, kind=kind)
