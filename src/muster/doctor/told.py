"""What training told of its findings: the events of a run that somebody watched."""

from collections.abc import Sequence

from muster.store import Line


def told(events: Sequence[Line]) -> list[Line] | None:
    """The findings among a run's events, each as it was said last; None where nobody watched the run."""
    said = [event for event in events if event.get("kind") == "finding"]
    if not said and not any(event.get("kind") == "start" and event.get("watched") for event in events):
        return None
    return list({str(event.get("name")): event for event in said}.values())
