"""A configuration driven to its end: objects, loop, store, checkpoints, and the exported model."""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from muster import checkpoint
from muster.assemble import Materials, Say, assemble, load_policy, prepare
from muster.clock import Progress, unwatched
from muster.config import Config, load, result_changing_differences, to_toml
from muster.engines.local import LocalEngine
from muster.engines.products import restored
from muster.errors import CheckpointError, ConfigError
from muster.export import export_model, form_of, model_card
from muster.history import History
from muster.loop import train
from muster.optimizer import optimizer_order
from muster.records import StepReport
from muster.rewards import isolations
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
        _open(folder, materials, resume, found) as store,
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


def _open(folder: Path, materials: Materials, resume: bool, found: Path | None) -> RunStore:
    if resume:
        return RunStore.open_for_resume(folder, int(found.name) if found else -1)
    meta = collect_meta(sys.argv) | {
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "isolation": isolations(materials.grader.rewards),
    }
    return RunStore.create(folder, to_toml(materials.config), meta)


def _check(session: Run, config: Config, store: RunStore, say: Say) -> None:
    """The start-up self-check; its numbers go into the events."""
    numbers = self_checked(session)
    store.append_event(
        "start",
        step=session.state.step,
        self_check=numbers,
        budget_tokens=session.budget.tokens,
        shares_prompts=session.policy.packs,
        products=_products(session),
    )
    shown = ", ".join(
        f"{name.replace('_', ' ')} {value:.1e}" for name, value in numbers.items() if value is not None
    )
    say(f"self-check: {shown}")
    say(f"update budget: {session.budget.tokens:,} tokens a micro-batch; run folder {store.folder}")


def self_checked(session: Run) -> dict[str, float | None]:
    """The numbers of the start-up self-check, by name; raises ModelError where one is too large."""
    is_low = session.policy.autocast is not None
    return self_check(
        session.policy,
        session.collector.engine,
        session.items,
        sampling=session.sampling,
        reference=session.reference if session.state.step == 0 else None,
        tolerance=TOLERANCE_LOW_PRECISION if is_low else TOLERANCE,
        sampled_by=session.state.old,
    ).numbers()


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
                "history": state.history.to_plain(),
                "budget_tokens": session.budget.tokens,
                "threads": torch.get_num_threads(),
                "products": _products(session),
            },
        ),
        keep,
    )


def _products(session: Run) -> dict[str, object] | None:
    """How the engine computes, where that was chosen at start: each way rounds differently."""
    engine = session.collector.engine
    return engine.choice._asdict() if isinstance(engine, LocalEngine) else None


def _restore(session: Run, path: Path) -> None:
    """Puts weights, optimizer, sampler and counters back as they were after the checkpoint's step."""
    saved = checkpoint.load(path, session.policy.device)
    checkpoint.put_weights(dict(session.policy.trainable()), saved.weights, path)
    checkpoint.load_optimizer(session.optimizer, optimizer_order(session.policy), saved.optimizer)
    state, numbers = session.state, saved.state
    for name in COUNTERS:
        setattr(state, name, _whole(numbers, name))
    state.history = _history(numbers)
    session.budget.tokens = _whole(numbers, "budget_tokens")
    # Sums are cut by threads: with another number of them the last bits would differ.
    torch.set_num_threads(_whole(numbers, "threads"))
    if isinstance(session.collector.engine, LocalEngine):
        session.collector.engine.choice = restored(numbers.get("products"))
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


def _history(numbers: Mapping[str, object]) -> History:
    """That of the checkpoint; a new one where it is from before there was any."""
    try:
        return History.from_plain(numbers["history"]) if "history" in numbers else History()
    except ValueError as error:
        raise CheckpointError(
            f"the history in state.json of the checkpoint can't be read: {error}"
        ) from error


def _finish(session: Run, materials: Materials, store: RunStore, told: Watchers) -> None:
    """Exports the trained model, verified, and closes the run's record."""
    told.progress("export", 0, 0)
    final = store.folder / "final"
    proof = export_model(
        session.policy,
        final,
        card=model_card(
            materials.config,
            read_metrics(store.folder),
            form=form_of(session.policy),
        ),
        probes=[item.ids for item in session.items],
        base_path=materials.config.model.path,
    )
    store.append_event(
        "end", step=session.state.step, export_difference=proof.difference, export_moved=proof.moved
    )
    told.say(f"exported to {final}; read back by a process of its own, {proof}")
