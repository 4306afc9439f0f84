"""What is to be said about a run: the one place that the page's findings come from.

Events of the kind `finding` say what, since when, how sure, on what evidence, what it means and what to
change. Each is one entry, as it was said last; equal warnings are one entry with all their steps.
"""

from collections.abc import Mapping, Sequence

from muster.store import Line
from muster.view.curves import number_of

SEVERITIES = {"failure": "error", "finding": "finding", "warning": "warning"}
"""Events that are findings, and how they are shown: the first of them first."""

_TOLD = ("since", "sure", "how", "means", "change")


def findings_of(events: Sequence[Line]) -> list[Line]:
    """The findings among a run's events.

    `severity`, `name`, `text`; `since`, `sure`, `how`, `means` and `change` as texts, empty where not said;
    `numbers` by name; `steps` at which it was said; `evidence`, places to look at, each with `step` and where
    known `group` (its number in the step) and `rollout`.
    """
    found: dict[tuple[str, str], Line] = {}
    for event in events:
        severity = SEVERITIES.get(str(event.get("kind")))
        if severity is None:
            continue
        entry = _entry(event, severity)
        key = (severity, entry["name"] if severity == "finding" else entry["text"])
        before = found.get(key, {"steps": [], "evidence": []})
        steps = [step] if isinstance(step := event.get("step"), int) else []
        entry["steps"] = [*before["steps"], *(step for step in steps if step not in before["steps"])]
        if severity != "finding":
            entry["evidence"] = [{"step": step} for step in entry["steps"] if step > 0]
        found[key] = entry
    return sorted(found.values(), key=lambda entry: list(SEVERITIES.values()).index(entry["severity"]))


def _entry(event: Line, severity: str) -> Line:
    evidence = event.get("evidence")
    seen = evidence if isinstance(evidence, dict) else {}
    numbers = seen.get("numbers")
    return {
        "severity": severity,
        "name": str(event.get("name") or event.get("error") or event.get("kind")),
        "text": str(event.get("what") or event.get("text") or ""),
        **{key: str(event.get(key) or "") for key in _TOLD},
        "numbers": {
            str(name): value if isinstance(value, str) else number_of(value)
            for name, value in numbers.items()
        }
        if isinstance(numbers, dict)
        else {},
        "evidence": places_of(seen),
    }


def places_of(evidence: Mapping[str, object]) -> list[dict[str, int]]:
    """Where to look, the closest first: rollouts, then groups, then steps that neither is of."""
    places = [
        place
        for kind, names in (("rollouts", ("step", "place", "rollout")), ("groups", ("step", "place")))
        for one in _listed(evidence, kind)
        if (place := _place(one, names))
    ]
    known = {place["step"] for place in places}
    steps = [step for step in _listed(evidence, "steps") if isinstance(step, int) and step > 0]
    return places + [{"step": step} for step in steps if step not in known]


def _listed(evidence: Mapping[str, object], kind: str) -> list[object]:
    some = evidence.get(kind)
    return some if isinstance(some, list) else []


def _place(one: object, names: Sequence[str]) -> dict[str, int] | None:
    """Step, group and rollout by number; None where one of them is no number."""
    if not isinstance(one, dict) or not all(isinstance(one.get(name), int) for name in names):
        return None
    return {"group" if name == "place" else name: one[name] for name in names}
