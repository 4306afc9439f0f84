"""A configuration driven to its end: objects, loop, store, checkpoints, and the exported model."""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from muster import checkpoint
from muster.assemble import Materials, Say, assemble, load_policy, optimizer_order, prepare
from muster.clock import Progress, unwatched
from muster.config import Config, load, result_changing_differences, to_toml
from muster.errors import CheckpointError, ConfigError
from muster.export import export_model, model_card
from muster.loop import train
from muster.records import StepReport
from muster.runstate import Run
from muster.selfcheck import self_check
from muster.store import RunStore, collect_meta, read_meta, read_metrics
from muster.tracing import traced

TOLERANCE = 1e-3
"""Nats by which paths that must agree may differ at start, in float32."""
TOLERANCE_LOW_PRECISION = 0.25
"""The same where the model computes in bfloat16."""

TRACE = "trace.json"
"""File of the run folder that a profile goes to."""

COUNTERS = ("step", "updates", "drawn", "num_tokens", "version", "old_version", "skipped_in_a_row")
"""Numbers of a run's state that a checkpoint holds."""


def _unsaid(text: str) -> None:
    """What nobody listens to."""


@dataclass(frozen=True, kw_only=True)
class Watchers:
    """Who is told what while a run goes on; the library itself prints nothing."""

    say: Say = _unsaid
    """Called with a line of text about what happens before the first step and after the last."""
    progress: Progress = unwatched
    should_stop: Callable[[], bool] = lambda: False
    """Asked after each step; True saves a checkpoint and ends the run there."""


def run(
    config: Config,
    *,
    resume: bool = False,
    watchers: Watchers | None = None,
    rewards: Sequence[str | Callable[..., object]] | None = None,
    profile: bool = False,
) -> Generator[StepReport]:
    """Trains as configured, a report per step; the run folder holds everything when it ends.

    Raises before a model is loaded where configuration, data or rewards are wrong. With `resume` the
    run goes on from its newest whole checkpoint. `rewards` hands over functions in place of the names
    that the configuration has for them. `profile` writes a trace of two steps into the run folder.
    """
    told = watchers or Watchers()
    folder = folder_of(config)
    found = _find_checkpoint(folder, config, told.say) if resume else None
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    told.progress("load", 0, 0)
    materials = prepare(config, told.say, rewards)
    with (
        closing(materials.grader),
        _open(folder, config, resume, found) as store,
        _failures_noted(store),
    ):
        policy = load_policy(config.model, materials.tokenizer, seed=config.run.seed, say=told.say)
        session = assemble(materials, policy, told.progress)
        if found is not None:
            _restore(session, found)
        told.progress("check", 0, 0)
        _check(session, config, store, told.say)
        yield from _drive(session, config, store, told, profile)
        if session.state.step >= session.plan.num_steps:
            _finish(session, materials, store, told)


@contextmanager
def _failures_noted(store: RunStore) -> Generator[None]:
    """Writes why a run ended early into its events, then lets the error go on."""
    try:
        yield
    except Exception as error:
        store.append_event("failure", error=type(error).__name__, text=str(error))
        raise


def folder_of(config: Config) -> Path:
    """The run's folder: `run.dir` / `run.name`."""
    return Path(config.run.dir) / (config.run.name or "run")


def _find_checkpoint(folder: Path, config: Config, say: Say) -> Path | None:
    """The checkpoint to go on from; None where the run ended before its first one."""
    if not folder.exists():
        raise ConfigError(f"{folder} is not there, so there is nothing to resume. Start it without --resume.")
    read_meta(folder)
    if differences := result_changing_differences(load(folder / "config.toml"), config):
        raise ConfigError(
            f"{folder} was started under other settings, so going on would make it another run:\n  "
            + "\n  ".join(differences)
            + "\nSet them back, or give the new run a name of its own with --run.name."
        )
    found, skipped = checkpoint.find(folder / "checkpoints")
    for reason in skipped:
        say(f"passed over checkpoint {reason}")
    say(f"going on from {found}" if found else f"{folder} has no whole checkpoint: starting over")
    return found


def _open(folder: Path, config: Config, resume: bool, found: Path | None) -> RunStore:
    if resume:
        return RunStore.open_for_resume(folder, int(found.name) if found else -1)
    meta = collect_meta(sys.argv) | {
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    return RunStore.create(folder, to_toml(config), meta)


def _check(session: Run, config: Config, store: RunStore, say: Say) -> None:
    """The start-up self-check; its numbers go into the events."""
    is_low = session.policy.autocast is not None
    numbers = self_check(
        session.policy,
        session.collector.engine,
        session.items,
        sampling=session.sampling,
        reference=session.reference if session.state.step == 0 else None,
        tolerance=TOLERANCE_LOW_PRECISION if is_low else TOLERANCE,
        sampled_by=session.state.old,
    ).numbers()
    store.append_event(
        "start",
        step=session.state.step,
        self_check=numbers,
        budget_tokens=session.budget.tokens,
        shares_prompts=session.policy.packs,
    )
    shown = ", ".join(
        f"{name.replace('_', ' ')} {value:.1e}" for name, value in numbers.items() if value is not None
    )
    say(f"self-check: {shown}")
    say(f"update budget: {session.budget.tokens:,} tokens a micro-batch; run folder {store.folder}")


def _drive(
    session: Run, config: Config, store: RunStore, told: Watchers, profile: bool
) -> Iterator[StepReport]:
    """Stores every report, saves checkpoints where they are due, and stops where asked to."""
    reports = train(session)
    if profile:
        reports = traced(reports, store.folder / TRACE, session.clock, told.say)
    with closing(reports):
        yield from _keep(reports, session, config, store, told)


def _keep(
    reports: Iterable[StepReport], session: Run, config: Config, store: RunStore, told: Watchers
) -> Iterator[StepReport]:
    for report in reports:
        with session.clock.phase("write"):
            store.append_step(report)
        step = report.step
        is_last = step >= session.plan.num_steps
        stops = not is_last and told.should_stop()
        every = config.run.save_every
        if step and (is_last or stops or (every and step % every == 0)):
            with session.clock.phase("save"):
                save(session, store.folder, config.run.keep)
        yield report
        if stops:
            store.append_event("stopped", step=step)
            saved = "the checkpoint is whole. Go on with --resume." if step else "nothing was trained yet."
            told.say(f"stopped after step {step}; {saved}")
            return


def save(session: Run, folder: Path, keep: int) -> Path:
    """Writes a checkpoint of the run as it is between two steps."""
    state = session.state
    names = optimizer_order(session.policy)
    return checkpoint.save(
        folder / "checkpoints",
        state.step,
        checkpoint.Checkpoint(
            weights={name: param.detach() for name, param in session.policy.trainable()},
            optimizer=checkpoint.optimizer_tensors(session.optimizer, names),
            old=state.old,
            state={
                **{name: getattr(state, name) for name in COUNTERS},
                "budget_tokens": session.budget.tokens,
                "threads": torch.get_num_threads(),
            },
        ),
        keep,
    )


def _restore(session: Run, path: Path) -> None:
    """Puts weights, optimizer, sampler and counters back as they were after the checkpoint's step."""
    saved = checkpoint.load(path, session.policy.device)
    checkpoint.put_weights(dict(session.policy.trainable()), saved.weights, path)
    checkpoint.load_optimizer(session.optimizer, optimizer_order(session.policy), saved.optimizer)
    state, numbers = session.state, saved.state
    for name in COUNTERS:
        setattr(state, name, _whole(numbers, name))
    session.budget.tokens = _whole(numbers, "budget_tokens")
    # Sums are cut by threads: with another number of them the last bits would differ.
    torch.set_num_threads(_whole(numbers, "threads"))
    state.old = dict(saved.old) if saved.old is not None else None
    weights = state.old.items() if state.old is not None else session.policy.trainable()
    session.collector.engine.load_weights(weights, state.old_version)


def _whole(numbers: object, name: str) -> int:
    value = numbers.get(name) if isinstance(numbers, dict) else None
    if not isinstance(value, int):
        raise CheckpointError(
            f"state.json of the checkpoint holds {name} = {value!r} instead of a whole number"
        )
    return value


def _finish(session: Run, materials: Materials, store: RunStore, told: Watchers) -> None:
    """Exports the trained model, verified, and closes the run's record."""
    told.progress("export", 0, 0)
    final = store.folder / "final"
    difference = export_model(
        session.policy,
        final,
        card=model_card(materials.config, read_metrics(store.folder)),
        probes=[item.ids for item in session.items[:2]],
        base_path=materials.config.model.path,
    )
    store.append_event("end", step=session.state.step, export_difference=difference)
    told.say(f"exported to {final}; read back, its logprobs differ by at most {difference:.1e}")
