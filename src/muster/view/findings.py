"""What is to be said about a run: the one place that the page's findings come from."""

from collections.abc import Sequence

from muster.store import Line

SEVERITIES = {"failure": "error", "finding": "finding", "warning": "warning"}
"""Events that are findings, and how they are shown."""


def findings_of(events: Sequence[Line]) -> list[Line]:
    """The findings among a run's events, one for each text, with the steps that are its evidence.

    `severity`, `name`, `text`, `advice`, `steps` (where it was said), `evidence`: places to look at, each
    with `step` and where known `group` and `rollout`.
    """
    found: dict[tuple[str, str], Line] = {}
    for event in events:
        severity = SEVERITIES.get(str(event.get("kind")))
        if severity is None:
            continue
        text = str(event.get("text") or event.get("says") or "")
        name = str(event.get("name") or event.get("error") or event.get("kind"))
        entry = found.setdefault(
            (severity, text),
            {
                "severity": severity,
                "name": name,
                "text": text,
                "advice": str(event.get("advice") or ""),
                "steps": [],
                "evidence": [],
            },
        )
        step = event.get("step")
        if isinstance(step, int) and step not in entry["steps"]:
            entry["steps"].append(step)
        entry["evidence"] += places_of(event)
    return sorted(found.values(), key=lambda entry: list(SEVERITIES.values()).index(entry["severity"]))


def places_of(event: Line) -> list[dict[str, int]]:
    """Where to look: the event's own evidence, else the step it speaks of."""
    named = event.get("evidence")
    places = [
        {key: place[key] for key in ("step", "group", "rollout") if isinstance(place.get(key), int)}
        for place in (named if isinstance(named, list) else [])
        if isinstance(place, dict) and isinstance(place.get("step"), int)
    ]
    step = event.get("step")
    return places or ([{"step": step}] if isinstance(step, int) and step > 0 else [])
