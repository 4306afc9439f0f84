"""A configuration driven to its end: objects, loop, store, checkpoints, and the exported model."""

import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from transformers import PreTrainedTokenizerBase

from muster import assemble, sft, warm_start
from muster.assemble import Say
from muster.checkpoint import put_weights
from muster.clock import Progress
from muster.config import Config, fingerprints, to_toml
from muster.devices import name_of
from muster.dist import decided_by_first, exchange, is_first, joined, together, world_size
from muster.doctor import KINDS, WARM_START_KINDS
from muster.driving import Watchers, accompany, drive
from muster.engine_setup import is_vllm
from muster.errors import ConfigError
from muster.export import export_model, form_of, model_card
from muster.keeping import standing
from muster.liger import fit
from muster.loop import train
from muster.nearest import did_you_mean
from muster.policy import Policy, divide
from muster.records import StepReport
from muster.resuming import TakenUp, go_on, taken_up
from muster.runstate import Run, Session
from muster.selfcheck import self_check
from muster.snapshot import agree, products, restore
from muster.store import TOKENIZER, RunStore, collect_meta, read_metrics
from muster.trackers import refuse_unusable

TOLERANCE = 1e-3
"""Nats by which paths that must agree may differ at start, in float32."""
TOLERANCE_LOW_PRECISION = 0.25
"""The same where the model computes in bfloat16."""


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
    if config.is_warm_start:
        yield from _carried_out(_warm_start(config), config, resume, told, profile)
    else:
        yield from _carried_out(_sampling(config, rewards), config, resume, told, profile)


class Prepared(Protocol):
    """What a configuration names, loaded as far as no model is needed."""

    @property
    def config(self) -> Config:
        """The configuration."""
        ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's."""
        ...

    @property
    def probes(self) -> Sequence[tuple[int, ...]]:
        """Token ids on which an export is compared with what it was made from."""
        ...

    @property
    def isolations(self) -> Mapping[str, str]:
        """What is between model-written code and the machine, by the reward that runs it."""
        ...

    def close(self) -> None:
        """Lets go of what it holds."""
        ...


Materials = TypeVar("Materials", bound=Prepared)
Objects = TypeVar("Objects", bound=Session)


@dataclass(frozen=True, kw_only=True)
class Method(Generic[Materials, Objects]):
    """How a run comes to learn; how it is kept, resumed and told is the same for all."""

    prepare: Callable[[Say], Materials]
    """Raises before a model is loaded where something is wrong."""
    assemble: Callable[[Materials, Policy, Progress], Objects]
    check: Callable[[Objects], Mapping[str, float | None]]
    """The numbers of the start-up self-check, by name."""
    train: Callable[[Objects], Generator[StepReport]]


def _sampling(
    config: Config, rewards: Sequence[str | Callable[..., object]] | None
) -> Method[assemble.Materials, Run]:
    """Completions are sampled and scored."""
    return Method(
        prepare=lambda say: assemble.prepare(config, say, rewards),
        assemble=assemble.assemble,
        check=self_checked,
        train=train,
    )


def _warm_start(config: Config) -> Method[warm_start.Answers, sft.WarmStart]:
    """Answers are given."""
    return Method(
        prepare=lambda say: warm_start.prepare(config, say),
        assemble=warm_start.assemble,
        check=lambda session: warm_start.self_checked(session, _tolerance(session.policy)),
        train=sft.train,
    )


def _carried_out(
    method: Method[Materials, Objects], config: Config, resume: bool, told: Watchers, profile: bool
) -> Generator[StepReport]:
    """The run from its folder to its exported model."""
    _refuse_unknown(config.run.pause_on, WARM_START_KINDS if config.is_warm_start else KINDS)
    refuse_unusable(config.run.trackers)
    folder = folder_of(config)
    with ExitStack() as stack:
        stack.enter_context(joined())
        _refuse_other_ranks(config)
        # Whoever calls has the number of threads back that was there.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        taken = together(lambda: _taken_up(stack, folder, config, told.say) if resume else None)
        if config.run.threads is not None:
            torch.set_num_threads(config.run.threads)
        told.progress("load", 0, 0)
        materials = together(lambda: method.prepare(told.say))
        stack.enter_context(closing(materials))
        store = together(lambda: _open(folder, materials, taken) if is_first() else None)
        if store is not None:
            stack.enter_context(closing(store))
            stack.enter_context(_failures_noted(store, told.say))
            _keep_tokenizer(store, materials)
        session = _session(method, materials, taken, told)
        if session.engine is not None:
            stack.enter_context(closing(session.engine))
        told.progress("check", 0, 0)
        numbers = together(lambda: method.check(session), meets=session.policy.held.rows is not None)
        if store is None:
            yield from accompany(method.train(session), session, config, told)
            if session.state.step >= session.plan.num_steps:
                session.policy.held.gathered()
            return
        _note_start(session, numbers, store, told.say)
        yield from drive(method.train(session), session, config, store, told, profile)
        if session.state.step >= session.plan.num_steps:
            _finish(session, materials, store, told)


def _taken_up(stack: ExitStack, folder: Path, config: Config, say: Say) -> TakenUp | None:
    """The run as it was left, on the one rank that writes."""
    return stack.enter_context(taken_up(folder, config, say)) if is_first() else None


def _session(
    method: Method[Materials, Objects], materials: Materials, taken: TakenUp | None, told: Watchers
) -> Objects:
    """The objects of the run, as its checkpoint left them; every rank reads the same one."""
    config = materials.config
    divides = config.run.layout == "shard"
    found = decided_by_first(lambda: str(taken.checkpoint) if taken and taken.checkpoint else None)

    def load() -> Objects:
        policy = assemble.load_policy(config.model, materials.tokenizer, seed=config.run.seed, say=told.say)
        if divides:
            divide(policy)
        session = method.assemble(materials, policy, told.progress)
        with ExitStack() as failing:
            if session.engine is not None:
                failing.enter_context(closing(session.engine))
            if policy.held.rows is None:
                policy.pieces = fit(policy.backbone, policy.precision)
            if found is not None:
                restore(session, Path(str(found)))
                # Where memory ran out a run goes on with a smaller one than it was saved with.
                session.budget.tokens = min(session.budget.tokens, config.run.budget_tokens or sys.maxsize)
            # From here on the run closes it.
            failing.pop_all()
        return session

    session = together(load, meets=divides)
    agree(session)
    return session


@contextmanager
def _failures_noted(store: RunStore, say: Say) -> Generator[None]:
    """Writes why a run ended early into its events, and says what stands; then lets the error go on."""
    try:
        yield
    except Exception as error:
        # A disk that is full, or gone, takes no event either: what is wrong is the first error.
        with suppress(OSError):
            store.append_event("failure", error=type(error).__name__, text=str(error))
            stands = standing(store.folder / "checkpoints")
            # What could not be saved has said it in its own words.
            if stands not in str(error):
                say(stands)
        raise


def _refuse_other_ranks(config: Config) -> None:
    """Refuses ranks that are told to train otherwise: tasks of one Slurm step, say, with a file each."""
    first, *others = [str(text).splitlines() for text in exchange(lambda: to_toml(config))]
    for number, other in enumerate(others, start=1):
        if other != first:
            theirs, ours = sorted(set(other) - set(first)), sorted(set(first) - set(other))
            raise ConfigError(
                f"rank {number} was started to train otherwise than rank 0: it has {theirs}, and rank 0 "
                f"{ours}. Give all one configuration; with WORLD_SIZE=1 each process trains alone."
            )


def _refuse_unknown(names: Sequence[str], known: Collection[str]) -> None:
    """Refuses a finding to pause on that the doctor can't make of such a run."""
    for name in names:
        if name not in known:
            raise ConfigError(
                f"run.pause_on names {name!r}, which no finding has.{did_you_mean(name, known)} "
                f"There are: {', '.join(known)}."
            )


def folder_of(config: Config) -> Path:
    """The run's folder: `run.dir` / `run.name`."""
    return Path(config.run.dir) / (config.run.name or "run")


def _open(folder: Path, materials: Prepared, taken: TakenUp | None) -> RunStore:
    config = materials.config

    def meta() -> dict[str, object]:
        return collect_meta(sys.argv) | {
            "threads": torch.get_num_threads(),
            "ranks": world_size(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "isolation": dict(materials.isolations),
            "inputs": taken.inputs if taken is not None else fingerprints(config),
        }

    if taken is not None:
        return go_on(taken, config, meta)
    return RunStore.create(folder, to_toml(config), meta())


def _keep_tokenizer(store: RunStore, materials: Prepared) -> None:
    """Puts the tokenizer into the run folder, unless it is there; a slow one has no form to be kept in."""
    fast = getattr(materials.tokenizer, "backend_tokenizer", None)
    if fast is not None and not (store.folder / TOKENIZER).exists():
        store.keep_tokenizer(fast.to_str())


def _note_start(session: Session, numbers: Mapping[str, float | None], store: RunStore, say: Say) -> None:
    """Puts the start and the numbers of its self-check into the events."""
    store.append_event(
        "start",
        step=session.state.step,
        self_check=numbers,
        budget_tokens=session.budget.tokens,
        shares_prompts=session.policy.packs,
        products=products(session),
        trains_by_onednn=session.policy.ways.onednn,
        watched=True,
        **session.policy.pieces.recorded(),
    )
    shown = ", ".join(
        f"{name.replace('_', ' ')} {value:.1e}" for name, value in numbers.items() if value is not None
    )
    say(f"device: {name_of(session.policy.device)}; computing in {_precision(session.policy)}")
    for line in session.policy.pieces.lines():
        say(line)
    say(f"self-check: {shown}")
    say(f"update budget: {session.budget.tokens:,} tokens a micro-batch; run folder {store.folder}")


def self_checked(session: Run) -> dict[str, float | None]:
    """The numbers of the start-up self-check, by name; raises ModelError where one is too large."""
    return self_check(
        session.policy,
        session.collector.engine,
        session.items,
        sampling=session.sampling,
        reference=session.reference if session.state.step == 0 else None,
        tolerance=_tolerance(session.policy),
        sampled_by=session.state.old,
        # vLLM computes in a precision and by kernels of its own; engine.max_mismatch bounds the mean.
        engine_tolerance=TOLERANCE_LOW_PRECISION if is_vllm(session.collector.engine) else None,
    ).numbers()


def _precision(policy: Policy) -> str:
    return str(policy.autocast or next(policy.head.parameters()).dtype).removeprefix("torch.")


def _tolerance(policy: Policy) -> float:
    return TOLERANCE if policy.autocast is None else TOLERANCE_LOW_PRECISION


def _finish(session: Session, materials: Prepared, store: RunStore, told: Watchers) -> None:
    """Exports the trained model, verified, and closes the run's record."""
    told.progress("export", 0, 0)
    final, policy = store.folder / "final", _whole_policy(session, materials)
    proof = export_model(
        policy,
        final,
        card=model_card(
            materials.config,
            read_metrics(store.folder),
            form=form_of(policy),
        ),
        probes=materials.probes,
        base_path=materials.config.model.path,
    )
    store.append_event(
        "end",
        step=session.state.step,
        export_difference=proof.difference,
        export_moved=proof.moved,
        **({} if proof.from_quantized is None else {"export_from_quantized": proof.from_quantized}),
    )
    told.say(f"exported to {final}; read back by a process of its own, {proof}")


def _whole_policy(session: Session, materials: Prepared) -> Policy:
    """The trained policy; where ranks divide its weights, a new one that is given all of them."""
    if session.policy.held.rows is None:
        return session.policy
    weights, config = session.policy.held.gathered(), materials.config
    policy = assemble.load_policy(config.model, materials.tokenizer, seed=config.run.seed, say=lambda _: None)
    put_weights(dict(policy.trainable()), weights, Path(config.model.path))
    return policy
