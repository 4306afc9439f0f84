"""Sampling ahead: while a step is learned, the completions of the steps after it are sampled.

With `engine.ahead` = N the prompts of step s are sampled by the weights that step s - 1 - N left, and those
of the first steps by the weights of the start. So what samples a step follows from its number alone, never
from which side was faster: equal runs are equal, and a resumed one goes on as the whole. How old a
completion may be is bounded by N; the recipe's sampler correction weighs it.

What a flight holds is proven once its completions are there: against the weights that sampled it.

On several ranks the first one asks for all: it alone holds what is under way, waits for it, proves it and
hands it on. The others know which prompts were asked for.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from muster.clock import AHEAD
from muster.dist import alone, decided_by_first, is_first, world_size
from muster.engines.for_all import ForAll
from muster.engines.plain import as_groups, plain_groups
from muster.engines.queued import Groups, Queued
from muster.errors import CheckpointError, EngineError, EngineLostError
from muster.policy import Weights
from muster.proof import prove, refuse_odd
from muster.records import Group, Prompt, Rollout, Score, StreamKey
from muster.runstate import Flight, Run, State


def fill(run: Run, first: int, last: int) -> None:
    """Has the prompts of these steps be sampled by the weights as they are, where they aren't under way yet.

    The run's end bounds it; nothing is done where the run does not sample ahead.
    """
    state, plan = run.state, run.plan
    if state.flights:
        first = max(first, state.flights[-1].step + 1)
    for step in range(first, min(last, plan.num_steps) + 1) if plan.ahead else ():
        indices = run.draw(state, plan.prompts_per_step, ())
        state.drawn += len(indices)
        state.flights = (*state.flights, _sent(run, step, indices))


def take(run: Run, step: int) -> Flight | None:
    """The step's flight, waited for and proven; None where the run does not sample ahead."""
    if not run.plan.ahead:
        return None
    first, *others = run.state.flights
    assert first.step == step, "flights come in the order of the steps"
    refuse_stale(first, run.plan.ahead)
    with run.clock.phase("sample"):
        flight = _handed_on(run, first)
    run.state.flights = tuple(others)
    return flight


def refuse_stale(flight: Flight, bound: int) -> None:
    """Refuses completions by weights that are more steps behind than `engine.ahead`."""
    if flight.staleness > bound:
        raise EngineError(
            f"the completions for step {flight.step} were sampled by the weights of step {flight.synced}, "
            f"{flight.staleness} steps behind those that it begins with, and engine.ahead allows {bound}. "
            "They are a checkpoint's: remove the newest one's folder, so that a resume takes the one before."
        )


def about(flight: Flight, groups: Sequence[Group], gaps: Sequence[float | None]) -> dict[str, float | None]:
    """Metrics of a step that was sampled ahead: the proof, and how old its completions are, in steps.

    `gaps` are what the proof found of later rounds, which are sampled by the weights of the step.
    """
    # Prompts that replace others are sampled in the step itself.
    ages = [0 if group.prompt.key.attempt else flight.staleness for group in groups for _ in group.rollouts]
    found = [gap for gap in (flight.mismatch, *gaps) if gap is not None]
    return {
        "sampling/mismatch": max(found, default=None),
        "sampling/staleness/mean": sum(ages) / len(ages) if ages else None,
        "sampling/staleness/max": max(ages, default=None),
    }


def num_in_flight(state: State) -> int:
    """Prompts that are drawn for steps to come."""
    return sum(len(flight.indices) for flight in state.flights)


def note_seconds(run: Run) -> None:
    """Counts what was sampled while nobody waited for it."""
    engine = run.engine.queued if isinstance(run.engine, ForAll) else run.engine
    if isinstance(engine, Queued):
        run.clock.count(AHEAD, engine.overlap.take())


def to_plain(run: Run) -> dict[str, object] | None:
    """What a checkpoint keeps of the flights: all completions, which are waited for here.

    A flight whose sampler is lost is kept without any. None where the run does not sample ahead.
    """
    if not run.plan.ahead:
        return None
    run.state.flights = tuple(_landed_or_lost(run, flight) for flight in run.state.flights)
    return {"flights": [_plain(flight) for flight in run.state.flights]}


def restore(run: Run, saved: Mapping[str, Any] | None) -> None:
    """Puts back the flights of a checkpoint, whose weights the engine holds by now.

    One without completions is sampled again, by these weights.
    """
    if not run.plan.ahead:
        return
    try:
        flights = [] if saved is None else list(saved["flights"])
        kept = [_read(run, flight) for flight in flights]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise CheckpointError(
            f"ahead.json of the checkpoint can't be read ({error!r}). Remove the checkpoint's folder, so "
            "that a resume takes the one before."
        ) from error
    run.state.flights = tuple(one if isinstance(one, Flight) else _sent(run, *one) for one in kept)


def _sent(run: Run, step: int, indices: Sequence[int]) -> Flight:
    """A flight that begins now."""
    state = run.state
    return Flight(
        step=step,
        indices=tuple(indices),
        synced=state.step,
        version=state.version,
        weights=_copied(run) if is_first() else None,
        sampled=_queued(run).submit(_prompts(run, step, indices), run.sampling),
    )


def _prompts(run: Run, step: int, indices: Sequence[int]) -> list[Prompt]:
    return [
        Prompt(ids=run.items[index].ids, key=StreamKey(run.plan.seed, step, slot, 0))
        for slot, index in enumerate(indices)
    ]


def _copied(run: Run) -> Weights:
    """The weights as they are, in one copy for all flights by them."""
    for flight in run.state.flights:
        if flight.version == run.state.version and flight.weights is not None:
            return flight.weights
    return run.policy.snapshot()


def _handed_on(run: Run, flight: Flight) -> Flight:
    """The flight with its completions, on every rank as on the first."""
    if world_size() == 1:
        return _landed(run, flight)
    read = _read(run, cast(dict[str, Any], decided_by_first(lambda: _plain(_landed(run, flight)))))
    assert isinstance(read, Flight), "it has landed"
    return read


def _landed(run: Run, flight: Flight) -> Flight:
    """The flight once its completions are there, refused where they are not by the weights it names."""
    if flight.weights is None:
        return flight
    groups = _unscored(run, flight, _queued(run).wait(flight.sampled))
    refuse_odd(groups, run.sampling, flight.version, flight.step)
    temperature = run.objective.temperature
    with alone():
        gap = prove(run, groups, step=flight.step, temperature=temperature, weights=flight.weights)
    return replace(flight, weights=None, mismatch=gap)


def _landed_or_lost(run: Run, flight: Flight) -> Flight:
    try:
        return _landed(run, flight)
    except EngineLostError:
        return flight


def _unscored(run: Run, flight: Flight, completions: Groups) -> list[Group]:
    """The completions as the proof takes them."""
    prompts = _prompts(run, flight.step, flight.indices)
    return [
        Group(
            id=prompt.key.group_id,
            sample=run.items[index].sample,
            prompt=prompt,
            prompt_text=run.items[index].text,
            rollouts=tuple(Rollout(completion=c, text="", score=Score(value=None)) for c in members),
        )
        for index, prompt, members in zip(flight.indices, prompts, completions, strict=True)
    ]


def _plain(flight: Flight) -> dict[str, object]:
    return {
        "step": flight.step,
        "indices": list(flight.indices),
        "synced": flight.synced,
        "version": flight.version,
        "mismatch": flight.mismatch,
        "completions": plain_groups(flight.sampled.result()) if flight.weights is None else None,
    }


def _read(run: Run, plain: Mapping[str, Any]) -> Flight | tuple[int, list[int]]:
    """What `_plain` made plain; of a flight without completions its step and its prompts."""
    indices = list(plain["indices"])
    for index in indices:
        run.items[index]
    if plain["completions"] is None:
        return plain["step"], indices
    sampled: Future[Groups] = Future()
    sampled.set_result(as_groups(plain["completions"]))
    return Flight(
        step=plain["step"],
        indices=tuple(indices),
        synced=plain["synced"],
        version=plain["version"],
        weights=None,
        sampled=sampled,
        mismatch=plain["mismatch"],
    )


def _queued(run: Run) -> Queued | ForAll:
    engine = run.engine
    assert isinstance(engine, Queued | ForAll), "what samples ahead takes orders while it works"
    return engine
