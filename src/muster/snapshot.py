"""A run between two steps as a checkpoint, and a checkpoint as a run between two steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from muster import ahead, checkpoint, ways
from muster.checkpoint import Checkpoint
from muster.dist import decided_by_first, exchange, world_size
from muster.engines.local import LocalEngine
from muster.engines.process import SamplerProcess
from muster.engines.products import restored
from muster.engines.queued import Queued
from muster.errors import CheckpointError
from muster.history import History
from muster.optimizer import Kept, kept, optimizer_order, put_back
from muster.runstate import Run, Session

COUNTERS = ("step", "updates", "drawn", "num_tokens", "version", "old_version", "skipped_in_a_row")
"""Numbers of a run's state that a checkpoint holds."""


def snapshot(session: Session) -> Checkpoint:
    """All that a resume needs of the run as it is: weights, optimizer, the copy that samples, counters.

    What is being sampled ahead is waited for.
    """
    state = session.state
    flights = ahead.to_plain(session) if isinstance(session, Run) else None
    optimizer = kept(session.optimizer, optimizer_order(session.policy))
    return Checkpoint(
        weights={name: param.detach() for name, param in session.policy.trainable()},
        optimizer=optimizer.tensors,
        old=state.old,
        state={
            **{name: getattr(state, name) for name in COUNTERS},
            "history": state.history.to_plain(),
            "budget_tokens": session.budget.tokens,
            "threads": torch.get_num_threads(),
            "products": products(session),
            "lays_out_frozen": session.policy.ways.copies_frozen,
            "trains_by_onednn": session.policy.ways.onednn,
            **session.policy.pieces.recorded(),
            "optimizer": optimizer.plain,
            "quantized": session.policy.quantized,
        },
        ahead=flights and {**flights, "threads": _threads_apart(session)},
    )


def products(session: Session) -> dict[str, object] | None:
    """How the engine computes, where that was chosen at start: each way rounds differently."""
    engine = _chooser(session)
    return engine.choice._asdict() if engine is not None else None


def _chooser(session: Session) -> LocalEngine | SamplerProcess | None:
    """The engine that chose how to compute; None of servers, and where nothing is sampled."""
    engine = session.engine
    inner = engine.apart if isinstance(engine, Queued) else engine
    return inner if isinstance(inner, LocalEngine | SamplerProcess) else None


def _threads_apart(session: Session) -> int | None:
    """Threads of the process that samples; None where there is none."""
    engine = _chooser(session)
    return engine.threads if isinstance(engine, SamplerProcess) else None


def agree(session: Session) -> None:
    """Has every rank compute as rank 0 does, and none with a larger budget than another has room for."""
    if world_size() == 1:
        return
    session.budget.tokens = min(int(str(tokens)) for tokens in exchange(lambda: session.budget.tokens))
    pieces = session.policy.pieces
    everywhere = cast(list[list[str]], exchange(lambda: sorted(pieces.taken)))
    pieces.taken = pieces.taken.intersection(*everywhere)

    def how() -> object:
        chosen = session.policy.ways
        ways = {"copies_frozen": chosen.copies_frozen, "onednn": chosen.onednn}
        return {"products": products(session), "ways": ways, "threads": torch.get_num_threads()}

    first = cast(dict[str, Any], decided_by_first(how))
    for name, value in first["ways"].items():
        setattr(session.policy.ways, name, value)
    torch.set_num_threads(int(first["threads"]))
    if isinstance(session.engine, LocalEngine):
        session.engine.choice = restored(first["products"])


def restore(session: Session, path: Path) -> None:
    """Puts weights, optimizer, sampler and counters back as they were after the checkpoint's step.

    Where ranks divide the weights, each reads its rows.
    """
    saved = checkpoint.load(path, session.policy.device, session.policy.held.rows)
    checkpoint.put_weights(dict(session.policy.trainable()), saved.weights, path)
    state, numbers = session.state, saved.state
    _refuse_other_base(session, numbers, path)
    # A checkpoint from before there was a choice of optimizers holds tensors alone.
    plain = numbers.get("optimizer", {})
    remembered = Kept(saved.optimizer, plain if isinstance(plain, dict) else {})
    put_back(session.optimizer, optimizer_order(session.policy), remembered)
    for name in COUNTERS:
        setattr(state, name, _whole(numbers, name))
    state.history = _history(numbers)
    session.budget.tokens = _whole(numbers, "budget_tokens")
    # Sums are cut by threads: with another number of them the last bits would differ.
    torch.set_num_threads(_whole(numbers, "threads"))
    session.policy.ways.copies_frozen = _chosen(numbers, "lays_out_frozen")
    session.policy.ways.onednn = _chosen(numbers, "trains_by_onednn")
    session.policy.pieces.keep(numbers.get("pieces"))
    state.old = dict(saved.old) if saved.old is not None else None
    if (engine := session.engine) is None:
        return
    products = restored(numbers.get("products"))
    match _chooser(session):
        case LocalEngine() as local:
            local.choice = products
        case SamplerProcess() as process:
            process.compute_as(products, _whole(saved.ahead or {"threads": process.threads}, "threads"))
        case None:
            pass
    weights = state.old.items() if state.old is not None else session.policy.trainable()
    engine.load_weights(weights, state.old_version)
    if isinstance(session, Run):
        ahead.restore(session, saved.ahead)


def _refuse_other_base(session: Session, numbers: Mapping[str, object], path: Path) -> None:
    """Refuses to go on from another quantised base than the one that the adapter was trained on."""
    was, now = numbers.get("quantized"), session.policy.quantized
    if was != now:
        raise CheckpointError(
            f"{path} was trained on a base whose quantised weights have the digest {was}, and here they have "
            f"{now}. Go on with the same model, model.quantize and version of bitsandbytes."
        )


def _chosen(numbers: Mapping[str, object], name: str) -> bool:
    return ways.restored(name, numbers.get(name))


def _whole(numbers: Mapping[str, object], name: str) -> int:
    value = numbers.get(name)
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
