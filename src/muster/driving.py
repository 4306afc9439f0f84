"""The steps of a run, each stored, with checkpoints where they are due and a stop where one is asked for."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from muster.assemble import Say
from muster.clock import Progress, unwatched
from muster.config import Config, minutes_of
from muster.dist import exchange
from muster.doctor import Finding, Watch
from muster.errors import EngineLostError
from muster.keeping import Keeper, Schedule, save_part, standing
from muster.records import StepReport
from muster.runstate import Session
from muster.store import RunStore, read_meta
from muster.tracing import traced
from muster.trackers import Trackers, tracked_run

TRACE = "trace.json"
"""File of the run folder that a profile goes to."""


def _unsaid(text: str) -> None:
    """What nobody listens to."""


def _unfound(step: int, finding: Finding) -> None:
    """What nobody looks at."""


@dataclass(frozen=True, kw_only=True)
class Watchers:
    """Who is told what while a run goes on; the library itself prints nothing."""

    say: Say = _unsaid
    """Called with a line of text about what happens before the first step and after the last."""
    progress: Progress = unwatched
    should_stop: Callable[[], bool] = lambda: False
    """Asked after each step; True saves a checkpoint and ends the run there."""
    found: Callable[[int, Finding], None] = _unfound
    """Called with the step and what the doctor found at it, each finding once."""


def accompany(
    reports: Iterable[StepReport], session: Session, config: Config, told: Watchers
) -> Iterator[StepReport]:
    """The same steps on a rank that writes nothing, or its part of the weights alone."""
    goes_on = schedule_of(config).goes_on_when_full
    for report in reports:
        stops = _all_stop(session, report, told.should_stop())
        save_part(session, goes_on_when_full=goes_on)
        yield report
        if stops:
            return


def _all_stop(session: Session, report: StepReport, wants: bool) -> bool:
    """Whether any rank wants to stop after this step, where there is more to come."""
    return any(exchange(lambda: wants)) and report.step < session.plan.num_steps


def drive(
    reports: Generator[StepReport],
    session: Session,
    config: Config,
    store: RunStore,
    told: Watchers,
    profile: bool,
) -> Iterator[StepReport]:
    """Stores every report, saves checkpoints where they are due, and stops where asked to."""
    if profile:
        reports = traced(reports, store.folder / TRACE, session.clock, told.say)
    with closing(reports), _tracking(session, config, store, told.say) as trackers:
        yield from _keep(reports, session, config, store, told, trackers)


@contextmanager
def _tracking(session: Session, config: Config, store: RunStore, say: Say) -> Generator[Trackers]:
    """The run's trackers, who are given some time at its end to send what is left."""
    started = str(read_meta(store.folder).get("started", ""))
    settings = config.model_dump(mode="json")
    step = session.state.step
    run = tracked_run(store.folder, started, settings, step + 1 if step else 0)
    trackers = Trackers(config.run.trackers, run)
    try:
        yield trackers
    finally:
        with suppress(OSError):
            _tell(trackers.close(), session.state.step, store, say)


def _tell(troubles: Sequence[str], step: int, store: RunStore, say: Say) -> None:
    """Says what went wrong beside the run, and writes it into its events."""
    for text in troubles:
        store.append_event("warning", step=step, text=text)
        say(text)


def _keep(
    reports: Iterable[StepReport],
    session: Session,
    config: Config,
    store: RunStore,
    told: Watchers,
    trackers: Trackers,
) -> Iterator[StepReport]:
    keeper = Keeper(session, store, schedule_of(config), told.say)
    watch = Watch(store.folder)
    for report in _saved_when_lost(reports, keeper, session):
        step = report.step
        is_last = step >= session.plan.num_steps
        with session.clock.phase("write"):
            store.append_step(report)
            found = watch.add(report, is_last=is_last)
        for finding in found:
            store.append_event("finding", step=step, **finding.to_plain())
        _tell(trackers.take(report, found), step, store, told.say)
        pauses = [finding.name for finding in found if finding.name in config.run.pause_on]
        stops = _all_stop(session, report, bool(pauses) or told.should_stop())
        is_saved = keeper.after(report, is_asked=stops)
        yield report
        for finding in found:
            told.found(step, finding)
        if stops:
            store.append_event("stopped", step=step, findings=pauses)
            at = f" at {', '.join(pauses)}" if pauses else ""
            told.say(f"stopped after step {step}{at}; {_what_stands(step, is_saved, keeper)}")
            return


def _saved_when_lost(reports: Iterable[StepReport], keeper: Keeper, session: Session) -> Iterator[StepReport]:
    """The reports; a run whose servers are gone is saved as it stands, and the error goes on."""
    last = session.state.step
    try:
        for report in reports:
            last = report.step
            yield report
    except EngineLostError:
        # Lost in an evaluation, the step that it belongs to has no report, and can't be gone on from.
        if last == session.state.step:
            keeper.save_now()
        raise


def _what_stands(step: int, is_saved: bool, keeper: Keeper) -> str:
    if is_saved:
        return "the checkpoint is whole. Go on with --resume."
    return f"it could not be saved. {standing(keeper.folder)}" if step else "nothing was trained yet."


def schedule_of(config: Config) -> Schedule:
    """When the configuration wants the run saved."""
    every = config.run.save_every
    minutes = minutes_of(every)
    return Schedule(
        every_steps=every if isinstance(every, int) else 0,
        every_s=60 * minutes if minutes else None,
        keep=config.run.keep,
        goes_on_when_full=config.run.on_full_disk == "go_on",
    )
