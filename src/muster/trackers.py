"""A run's numbers, findings and samples handed on to wandb, trackio or tensorboard.

Each tracker works in a thread of its own, so that one that is slow, or hangs, costs the run nothing. One that
fails is told of once, and left alone from then on.
"""

import contextlib
import hashlib
import importlib.util
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from muster.doctor import Finding
from muster.errors import ConfigError
from muster.escaping import escape_block
from muster.nearest import did_you_mean
from muster.records import Group, StepReport
from muster.redaction import redacted, without_secrets

PROJECT = "muster"
FOLDER = "tensorboard"
"""Of the run's folder: where tensorboard's files are."""
MAX_WAITING = 1_000
"""Things that wait for a slow tracker; beyond, it is left alone."""
CLOSE_S = 30.0
"""Seconds that the end of a run waits for its trackers."""
_SPAN = 4096
"""Characters behind a text that is cut, in which a secret may end."""
SAMPLES_EVERY = 10
"""Steps between tables of samples; the first step and each evaluation have one, too."""
NUM_SAMPLES = 4
MAX_CHARACTERS = 1_000


class Tracked(NamedTuple):
    """A run as a tracker knows it."""

    name: str
    id: str
    """The same when the run is resumed: what is sent then goes on in the same place."""
    folder: Path
    config: Mapping[str, object]
    """Without secrets."""
    next_step: int
    """The first that will be sent."""


class Shown(NamedTuple):
    """A rollout in a table of samples."""

    prompt: str
    completion: str
    score: float | None


class Tracker(Protocol):
    """What is sent where. Any of these may raise, or take its time."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """The metrics of a step, by their names in `metrics.jsonl`."""
        ...

    def note(self, step: int, title: str, text: str) -> None:
        """A finding."""
        ...

    def samples(self, step: int, rows: Sequence[Shown]) -> None:
        """Some rollouts of a step."""
        ...

    def close(self) -> None:
        """Sends what is left."""
        ...


class Wandb:
    """Weights & Biases; `WANDB_MODE=offline` writes into the run's folder alone."""

    def __init__(self, run: Tracked) -> None:
        import wandb

        # The run's own files say what it ran on, redacted; wandb's copy of the command line is not.
        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, save_code=False,
            x_disable_meta=True, x_disable_machine_info=True, x_disable_stats=True, host="muster",
        )  # fmt: skip
        self._table = wandb.Table
        self._run = wandb.init(
            project=PROJECT, name=run.name, id=run.id, resume="allow", dir=str(run.folder),
            config=dict(run.config), settings=settings, reinit="create_new",
        )  # fmt: skip
        # wandb drops what comes for a step it has seen; a resumed run sends some again.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """One line of its history."""
        self._run.log({**values, "step": step})

    def note(self, step: int, title: str, text: str) -> None:
        """An alert."""
        self._run.alert(title=title[:64], text=f"step {step}: {text}")

    def samples(self, step: int, rows: Sequence[Shown]) -> None:
        """A table."""
        table = self._table(columns=list(Shown._fields), data=[list(row) for row in rows])
        self._run.log({"samples": table, "step": step})

    def close(self) -> None:
        """Uploads what is left."""
        self._run.finish()


class Trackio:
    """trackio: a database on this machine, or where `TRACKIO_SPACE_ID` says."""

    def __init__(self, run: Tracked) -> None:
        import trackio

        self._trackio = trackio
        with _speechless():
            self._run = trackio.init(
                project=PROJECT, name=f"{run.name}-{run.id}", resume="allow", config=dict(run.config),
                embed=False, auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """One line of its history."""
        self._run.log(dict(values), step=step)

    def note(self, step: int, title: str, text: str) -> None:
        """An alert."""
        with _speechless():
            self._run.alert(title=title, text=f"step {step}: {text}")

    def samples(self, step: int, rows: Sequence[Shown]) -> None:
        """A table."""
        columns = list(Shown._fields)
        table = self._trackio.Table(columns=columns, data=[list(row) for row in rows])
        self._run.log({"samples": table}, step=step)

    def close(self) -> None:
        """Writes what is left."""
        with _speechless():
            self._run.finish()


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir runs`."""

    def __init__(self, run: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a killed process wrote beyond its last checkpoint is passed over by the reader.
        self._writer = SummaryWriter(str(run.folder / FOLDER), purge_step=run.next_step)
        lines = "\n".join(f"    {key} = {value!r}" for key, value in _flat(run.config))
        self._writer.add_text("config", lines, run.next_step)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """A scalar each."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)
        self._writer.flush()

    def note(self, step: int, title: str, text: str) -> None:
        """A text."""
        self._writer.add_text(f"findings/{title}", _as_code(text), step)

    def samples(self, step: int, rows: Sequence[Shown]) -> None:
        """A text, each rollout as a block of code: nothing in it is markup."""
        blocks = [f"score {row.score}\n{row.prompt}\n→ {row.completion}" for row in rows]
        self._writer.add_text("samples", "\n\n---\n\n".join(map(_as_code, blocks)), step)

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()


class Kind(NamedTuple):
    """A tracker that can be named in `run.trackers`."""

    package: str
    make: Callable[[Tracked], Tracker]


TRACKERS: Mapping[str, Kind] = {
    "wandb": Kind("wandb", Wandb),
    "trackio": Kind("trackio", Trackio),
    "tensorboard": Kind("tensorboard", TensorBoard),
}


def refuse_unusable(names: Sequence[str]) -> None:
    """Raises ConfigError for a tracker that there isn't, or whose package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(
                f"run.trackers names {name!r}, which is no tracker.{did_you_mean(name, TRACKERS)} "
                f"There are: {', '.join(TRACKERS)}."
            )
        if importlib.util.find_spec(TRACKERS[name].package) is None:
            raise ConfigError(
                f"run.trackers names {name!r}, and the package {TRACKERS[name].package} is not installed. "
                f'Install it with: pip install "muster-rl[{name}]"'
            )


def identity(name: str, started: str) -> str:
    """What a run is called for as long as its folder lasts: its name and the time it was made."""
    return hashlib.sha256(f"{name}\n{started}".encode()).hexdigest()[:10]


class Line:
    """One tracker at the end of a line of things to send, in a thread of its own."""

    def __init__(self, name: str, make: Callable[[Tracked], Tracker], run: Tracked) -> None:
        self.name = name
        self._make, self._run = make, run
        self._waiting: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(MAX_WAITING)
        self._trouble: list[str] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name=f"muster-{name}", daemon=True)
        self._thread.start()

    def send(self, what: Callable[[Tracker], None]) -> None:
        """Puts it in the line; gives the tracker up where the line is full."""
        if self._is_over:
            return
        try:
            self._waiting.put_nowait(what)
        except queue.Full:
            self._give_up(f"takes nothing any more: {MAX_WAITING:,} things wait for it")

    def take_trouble(self) -> list[str]:
        """What went wrong since it was asked last; once there was something, nothing more is sent."""
        trouble, self._trouble = self._trouble, []
        return trouble

    def finish(self) -> None:
        """Says that nothing more comes."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)

    def close(self, left_s: float, given_s: float) -> None:
        """Waits so long, of the time that all were given, for what is left to be sent."""
        self._thread.join(left_s)
        if self._thread.is_alive() and not self._is_over:
            self._give_up(f"was not done {given_s:.0f} s after the end of the run")

    def _give_up(self, why: str) -> None:
        self._is_over = True
        self._trouble.append(
            f"tracker {self.name} {why}. The run goes on without it; all is in the run's folder."
        )

    def _work(self) -> None:
        try:
            tracker = self._make(self._run)
            while (what := self._waiting.get()) is not None:
                what(tracker)
            tracker.close()
        except BaseException as error:  # whatever a tracker does, and wandb exits, the run goes on
            self._give_up(f"failed ({type(error).__name__}: {redacted(str(error))})")


class Trackers:
    """All trackers of a run."""

    def __init__(self, names: Sequence[str], run: Tracked, kinds: Mapping[str, Kind] = TRACKERS) -> None:
        self._lines = [Line(name, kinds[name].make, run) for name in names]

    def take(self, report: StepReport, found: Sequence[Finding]) -> list[str]:
        """Sends a step and what was found at it; what has gone wrong so far, once."""
        held_out = report.eval.metrics if report.eval else {}
        values = {
            name: float(value) for name, value in {**report.metrics, **held_out}.items() if value is not None
        }
        step = report.step
        self._send(lambda tracker: tracker.numbers(step, values))
        for title, text in [(finding.name, _told(finding)) for finding in found]:
            self._send(lambda tracker, title=title, text=text: tracker.note(step, title, text))
        if report.groups and (step == 1 or step % SAMPLES_EVERY == 0 or report.eval):
            rows = best_and_worst(report.groups)
            self._send(lambda tracker: tracker.samples(step, rows))
        return self._trouble()

    def close(self, seconds: float = CLOSE_S) -> list[str]:
        """Waits until all is sent, up to so many seconds; what has gone wrong, once."""
        end = time.monotonic() + seconds
        for line in self._lines:
            line.finish()
        for line in self._lines:
            line.close(max(0.0, end - time.monotonic()), seconds)
        return self._trouble()

    def _send(self, what: Callable[[Tracker], None]) -> None:
        for line in self._lines:
            line.send(what)

    def _trouble(self) -> list[str]:
        return [text for line in self._lines for text in line.take_trouble()]


def tracked_run(folder: Path, started: str, config: Mapping[str, object], next_step: int) -> Tracked:
    """The run as trackers know it; its settings without secrets."""
    plain = without_secrets(config)
    assert isinstance(plain, dict)
    return Tracked(folder.name, identity(folder.name, started), folder.absolute(), plain, next_step)


def best_and_worst(groups: Sequence[Group]) -> list[Shown]:
    """Some rollouts of a step, half of them the best and half the worst, as text that steers nothing."""
    rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
    scored = [pair for pair in rollouts if pair[1].score.value is not None]
    ranked = sorted(scored, key=lambda pair: -(pair[1].score.value or 0.0))
    half = NUM_SAMPLES // 2
    chosen = ranked if len(ranked) <= NUM_SAMPLES else [*ranked[:half], *ranked[-half:]]
    return [Shown(_shown(g.prompt_text), _shown(r.text), r.score.value) for g, r in chosen]


def _shown(text: str) -> str:
    # Redacted first: a secret that is cut, or whose signs are escaped, is no longer known as one.
    return escape_block(redacted(text[: MAX_CHARACTERS + _SPAN])[:MAX_CHARACTERS])


def _told(finding: Finding) -> str:
    return redacted(f"{finding.what} ({finding.sure}, since step {finding.since}). {finding.kind.change}")


def _as_code(text: str) -> str:
    """The text as a block that markdown shows letter by letter."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _flat(values: Mapping[str, Any], path: str = "") -> Generator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        elif value is not None:
            yield f"{path}{key}", value


class _Unless:
    """A stream that takes nothing of one thread; the others write as before."""

    def __init__(self, stream: Any, thread: int) -> None:
        self._stream, self._thread = stream, thread

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _speechless() -> Generator[None]:
    """What this thread prints inside goes nowhere: a library speaks where a run's numbers are printed."""
    stream = sys.stdout
    sys.stdout = _Unless(stream, threading.get_ident())
    try:
        yield
    finally:
        sys.stdout = stream
