"""What `muster regrade` left in a run's folder, as the page shows it; foreign data like all of the folder."""

import hashlib
from collections.abc import Mapping, Sequence

from muster.errors import CheckpointError, ConfigError
from muster.store import Line, read_regrade, read_regraded_rollouts, regrade_names
from muster.view.curves import number_of
from muster.view.sources import Source

SIDES = ("before", "after")
_OF_SIDE = ("score", "scored", "failed", "abstained", "mixed", "clip_low", "clip_high")
_OF_BOTH = ("rollouts", "groups", "advantage_correlation", "cosine", "same_sign", "relative_norm")
_COUNTS = ("tokens", "unknown")
_REPRODUCED = ("advantages", "of_advantages", "clip_steps", "of_clip_steps")
_OF_ROLLOUT = ("score_before", "score_after", "advantage_before", "advantage_after")
MAX_LISTED = 100
"""Of the rollouts, notes and reasons of one regrade."""


def regrade_list(source: Source) -> Line:
    """The regrades of a run: `id`, by which the page asks for one, and name."""
    return {"regrades": [{"id": _id_of(name), "name": name} for name in regrade_names(source.folder)]}


def regrade_view(source: Source, wanted: str) -> Line:
    """A listed regrade: its settings, its numbers as columns by step, and the rollouts that changed most."""
    name = _name_of(source, wanted)
    found = read_regrade(source.folder, name)
    steps = [step for step in _listed(found, "steps") if number_of(step.get("step")) is not None]
    return {
        "id": wanted,
        "name": name,
        "made": str(found.get("made") or ""),
        "settings": [
            {key: str(one.get(key)) for key in ("path", *SIDES)} for one in _listed(found, "settings")
        ],
        "is_unchanged": found.get("is_unchanged") is True,
        "reproduced": _numbers(found.get("reproduced"), _REPRODUCED),
        "whole": _compared(found.get("whole")),
        "columns": _columns([{**_compared(step), "step": step["step"]} for step in steps]),
        "changed_most": [_changes(one) for one in _listed(found, "changed_most")[:MAX_LISTED]],
        "left_out": _texts(found.get("left_out")),
        "notes": _texts(found.get("notes")),
        "failures": [[str(why), number_of(count)] for why, count in _items(found.get("failures"))],
    }


def regraded_step(source: Source, wanted: str, step: int) -> Line:
    """What each rollout of a step got before and after."""
    rows = read_regraded_rollouts(source.folder, _name_of(source, wanted), step)
    return {"step": step, "rollouts": [_changes(row) for row in rows]}


def regrade_answers(source: Source, path: str, steps: Sequence[int]) -> dict[str, object]:
    """All answers about a run's regrades, for a page without a server; unreadable ones are left out."""
    listed = regrade_list(source)["regrades"]
    answers: dict[str, object] = {}
    for one in listed:
        try:
            found: dict[str, object] = {f"{path}/regrades/{one['id']}": regrade_view(source, one["id"])}
            for step in steps:
                found[f"{path}/regrades/{one['id']}/steps/{step}"] = regraded_step(source, one["id"], step)
        except CheckpointError:
            continue
        answers |= found
    kept = [one for one in listed if f"{path}/regrades/{one['id']}" in answers]
    return {**answers, f"{path}/regrades": {"regrades": kept}}


def _id_of(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _name_of(source: Source, wanted: str) -> str:
    """The listed name that the page means; a request never names a file."""
    for name in regrade_names(source.folder):
        if _id_of(name) == wanted:
            return name
    raise ConfigError("This regrade is not in the run's folder any more. Look at the list again.")


def _compared(value: object) -> dict[str, float | None]:
    """The numbers of a step, or of all: those of a side as `after/score`."""
    table = value if isinstance(value, dict) else {}
    numbers = _numbers(table, (*_OF_BOTH, *_COUNTS))
    for side in SIDES:
        numbers |= {f"{side}/{key}": n for key, n in _numbers(table.get(side), _OF_SIDE).items()}
    return numbers


def _columns(steps: Sequence[Mapping[str, float | None]]) -> dict[str, list[float | None]]:
    """By key a number per step; a key without any is left out."""
    keys = dict.fromkeys(key for step in steps for key in step)
    columns = {key: [step.get(key) for step in steps] for key in keys}
    return {key: values for key, values in columns.items() if any(value is not None for value in values)}


def _changes(row: Line) -> Line:
    places = {name: row[name] if isinstance(row.get(name), int) else 0 for name in ("step", "group", "index")}
    why = row.get("why")
    return {**places, **_numbers(row, _OF_ROLLOUT), "why": str(why) if why else None}


def _numbers(value: object, keys: Sequence[str]) -> dict[str, float | None]:
    table = value if isinstance(value, dict) else {}
    return {key: number_of(table.get(key)) for key in keys}


def _listed(found: Line, key: str) -> list[Line]:
    some = found.get(key)
    return [one for one in some if isinstance(one, dict)] if isinstance(some, list) else []


def _texts(value: object) -> list[str]:
    return [str(one) for one in value[:MAX_LISTED]] if isinstance(value, list) else []


def _items(value: object) -> list[tuple[str, object]]:
    return list(value.items())[:MAX_LISTED] if isinstance(value, dict) else []
