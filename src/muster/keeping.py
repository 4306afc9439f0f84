"""When a run is saved, and which of its checkpoints stay."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muster import checkpoint
from muster.dist import decided_by_first
from muster.divided import save_divided
from muster.errors import DiskFullError
from muster.files import discard, leftovers
from muster.records import StepReport
from muster.runstate import Session
from muster.snapshot import snapshot
from muster.store import RunStore, held_out_score, held_out_scores


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How often a run is saved, and how much of that is kept."""

    every_steps: int = 0
    """Steps between checkpoints; 0: not by steps."""
    every_s: float | None = None
    """Seconds between checkpoints; None: not by time."""
    keep: int
    """How many of the newest stay."""
    goes_on_when_full: bool = False
    """A checkpoint that has no room is a warning, not the end of the run."""

    @property
    def saves_in_between(self) -> bool:
        """Checkpoints are taken before the end, too."""
        return self.every_steps > 0 or self.every_s is not None


class Keeper:
    """Saves a run where it is due, always between two steps.

    The newest checkpoints are kept, and beside them the best by held-out reward or loss. So that it is
    there, a step whose evaluation is better than all before it is saved, where checkpoints are taken in
    between at all.
    """

    def __init__(
        self,
        session: Session,
        store: RunStore,
        schedule: Schedule,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes up the run as it is, and removes what a killed process left of saving it."""
        self._session, self._store, self._schedule = session, store, schedule
        self._say, self._now = say, now
        self._saved_at = now()
        self._held_out = held_out_scores(store.folder)
        self._saved_step = session.state.step
        self.folder = store.folder / "checkpoints"
        for left in (*leftovers(self.folder), *leftovers(store.folder)):
            discard(left)
        self._retire()

    def after(self, report: StepReport, *, is_asked: bool) -> bool:
        """Saves where this step is due, or where it is asked for; whether there is a checkpoint of it."""
        is_best = self._note(report)
        step = report.step
        is_due = step > 0 and (is_asked or self._is_due(step, is_best))
        if self._session.policy.held.rows is not None:
            decided_by_first(lambda: str(self.folder.absolute()) if is_due else None)
        if not is_due:
            return False
        with self._session.clock.phase("save"):
            return self._save(step)

    def save_now(self) -> None:
        """Saves the run as it stands between two steps, unless there is nothing to save or it is saved."""
        step = self._session.state.step
        if step and step != self._saved_step:
            self._save(step)

    def _note(self, report: StepReport) -> bool:
        """Remembers the step's held-out score; whether it is the best of those after an update."""
        score = held_out_score(report.eval.metrics) if report.eval else None
        if score is None:
            return False
        before = [value for step, value in self._held_out.items() if 0 < step < report.step]
        self._held_out[report.step] = score
        return all(score > value for value in before)

    def _is_due(self, step: int, is_best: bool) -> bool:
        schedule = self._schedule
        if step >= self._session.plan.num_steps or (
            schedule.every_steps and step % schedule.every_steps == 0
        ):
            return True
        if schedule.every_s is not None and self._now() - self._saved_at >= schedule.every_s:
            return True
        return is_best and schedule.saves_in_between

    def _save(self, step: int) -> bool:
        try:
            _write(self.folder, self._session)
        except DiskFullError as error:
            if not self._schedule.goes_on_when_full:
                raise DiskFullError(
                    f"{error} {standing(self.folder)} Or set run.on_full_disk to go on without checkpoints."
                ) from error
            self._warn(f"no checkpoint of step {step}: {error} {standing(self.folder)}")
            return False
        self._saved_at = self._now()
        self._saved_step = step
        self._retire()
        return True

    def _retire(self) -> None:
        best = checkpoint.best(self.folder, self._held_out)
        spared = {int(best.name)} if best else set()
        for reason in checkpoint.retire(self.folder, self._session.state.step, self._schedule.keep, spared):
            self._warn(reason)

    def _warn(self, text: str) -> None:
        self._say(text)
        self._store.append_event("warning", step=self._session.state.step, text=text)


def save_part(session: Session, *, goes_on_when_full: bool) -> None:
    """After a step on a rank that writes nothing else: saves its part of the weights, where that is due."""
    if session.policy.held.rows is None:
        return
    folder = decided_by_first(lambda: None)
    if folder is None:
        return
    try:
        _write(Path(str(folder)), session)
    except DiskFullError:
        # Rank 0 tells of it.
        if not goes_on_when_full:
            raise


def _write(folder: Path, session: Session) -> None:
    rows, step = session.policy.held.rows, session.state.step
    if rows is None:
        checkpoint.save(folder, step, snapshot(session))
    else:
        save_divided(folder, step, snapshot(session), rows)


def standing(folder: Path) -> str:
    """What a run that ends now can go on from, as a sentence: by sizes, since a resume looks closer."""
    found, _ = checkpoint.find(folder, hashes=False)
    if found is None:
        return "There is no checkpoint yet: --resume starts the run over."
    return f"Checkpoint {found.name} stands: --resume goes on from it."
