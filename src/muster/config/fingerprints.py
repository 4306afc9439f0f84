"""What is in the files that a configuration names, so that a moved project is known again."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from muster.config.kinds import Choice
from muster.config.paths import FUNCTION_FIELDS, PATH_FIELDS
from muster.config.sections import Config

MODEL_BYTES = 2**25
"""Of a model's file so much is read, beside its size: weights may be of hundreds of gigabytes."""


def fingerprints(config: Config) -> dict[str, str]:
    """A digest by path, of each file or folder that the configuration names and that is there."""
    found: dict[str, str] = {}
    for field, value in leaves(config).items():
        limit = MODEL_BYTES if field.startswith("model.") else None
        for text in _files(field, value):
            try:
                found[text] = _digest(Path(text), limit)
            except (OSError, ValueError):
                # Not a file: a hub id, a task. A file that can't be read is refused by who needs it.
                continue
    return found


def by_content(field: str, value: object, digests: Mapping[str, str]) -> object:
    """The value with each path in it that has a digest as that digest."""
    match value:
        case tuple():
            return tuple(by_content(field, item, digests) for item in value)
        case Choice():
            return by_content(field, value.use, digests), value.params
        case str() if field in PATH_FIELDS:
            return digests.get(value, value)
        case str() if FUNCTION_FIELDS.fullmatch(field):
            file, colon, function = value.rpartition(":")
            return f"{digests.get(file, file)}{colon}{function}"
        case _:
            return value


def edited_files(field: str, value: object, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The files in the value whose content was another; one that only one side knows can't be told."""
    known = [file for file in _files(field, value) if file in before and file in after]
    return [file for file in known if before[file] != after[file]]


def leaves(config: Config) -> dict[str, object]:
    """Every value by its path; a table that may be absent (lora) has no leaves then."""
    return dict(_leaves_of(config, ""))


def _leaves_of(section: BaseModel, prefix: str) -> Iterator[tuple[str, object]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel) and not isinstance(value, Choice):
            yield from _leaves_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _files(field: str, value: object) -> Iterator[str]:
    """The paths in a field's value, as they stand there."""
    match value:
        case tuple():
            for item in value:
                yield from _files(field, item)
        case Choice():
            yield from _files(field, value.use)
        case str() if field in PATH_FIELDS:
            yield value
        case str() if FUNCTION_FIELDS.fullmatch(field) and value.rpartition(":")[0].endswith(".py"):
            yield value.rpartition(":")[0]
        case _:
            return


def _digest(path: Path, limit: int | None) -> str:
    """Start of the SHA-256 of a file, or of the names and files of a folder."""
    if not path.is_dir():
        return _joined(_of_file(path, limit))
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file, path)]
    return _joined(part for file in files for part in (str(file.relative_to(path)), *_of_file(file, limit)))


def _joined(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _of_file(path: Path, limit: int | None) -> tuple[str, str]:
    """Size and digest of a file's first bytes, or of all of them."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256") if limit is None else hashlib.sha256(file.read(limit))
    return str(path.stat().st_size), digest.hexdigest()


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)
