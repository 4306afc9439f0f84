"""A run on other machines as a person reads it on a terminal, and as plain data."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from muster.cli.text import escape_text, number, percent
from muster.scaling import Limit, Step

if TYPE_CHECKING:
    # Only the types: the command line does not wait for the models behind them.
    from muster.preflight import Laid, Outlook

_TITLE, _COLUMN = 24, 10
_GB, _MB = 1e9, 1e6

_MEMORY = {
    "weights": "weights",
    "optimizer": "optimizer state",
    "copies": "copies of weights",
    "gradients": "gradients",
    "activations": "activations",
    "casts": "weights in bfloat16",
    "logits": "logits",
    "gathered": "gathered in a pass",
    "whole": "gathered to sample",
    "cache": "keys and values",
    "peak": "at its peak",
    "server": "a server",
}
"""What a device holds, by the fields of the record."""

_WHY = {
    "weights read": "a rank reads all weights for each token of its longest completion, however few it has",
    "tokens sampled": "a rank samples whole groups, and no more ranks than a step has prompts sample at all",
    "rewards": "a rank scores whole groups",
    "forward and backward": "a rank computes at least one completion, and its prompt before it",
    "optimizer": "every rank updates all the weights that are trained",
    "gradients": "every rank sends them all twice, however many ranks there are",
    "weights gathered": "every rank is sent all of them for sampling, and twice for every part of an update",
    "logprobs": "every rank is told those of all",
    "rollouts": "every rank is sent those of all",
    "weights to servers": "every server reads all of them from one folder",
    "completions of servers": "they come over one network",
}
"""What more devices don't change about each part of a step."""


def outlook_lines(outlook: "Outlook") -> Iterator[str]:
    """The whole of it, a line at a time."""
    yield from _about(outlook)
    yield ""
    yield from _assumptions(outlook)
    yield ""
    yield _row("", [str(laid.step.layout) for laid in outlook.laid])
    yield from _memory_rows(outlook)
    yield from _network_rows(outlook)
    yield from _second_rows(outlook)
    yield ""
    yield from _most(outlook)
    speedups = [f"{step.layout}: {outlook.curve[0].seconds / step.seconds:.1f}" for step in outlook.curve]
    yield f"speed-up, up to {outlook.per_node} devices a node: {', '.join(speedups)}"
    yield _limit_line(outlook.limit, outlook.curve[-1])
    for laid in outlook.laid:
        if not laid.fits:
            yield f"{laid.step.layout} does not fit into the memory of its devices."


def _about(outlook: "Outlook") -> Iterator[str]:
    model, work = outlook.model, outlook.work
    trained = (
        "all trained" if not model.adapter_params else f"an adapter of {model.adapter_params:,} is trained"
    )
    name = escape_text(model.name)
    yield f"{name}: {model.num_params:,} parameters, {trained}; computed in {model.compute}"
    lengths = f"prompts of {work.prompt_tokens:.1f} tokens (mean), completions of up to {work.max_tokens}"
    updates = "1 update" if work.updates == 1 else f"{work.updates} updates"
    yield f"a step: {work.prompts} prompts, {work.rollouts} rollouts, {updates}; {lengths}"
    if outlook.is_measured:
        paces = outlook.paces
        yield (
            f"measured here: {number(paces.pass_s)} s a pass, {number(paces.token_s)} s a token in sampling, "
            f"{number(paces.train_s)} s a token in training, {number(paces.optimizer_s)} s for the optimizer"
        )


def _assumptions(outlook: "Outlook") -> Iterator[str]:
    yield "taken as given; --assume NAME=VALUE sets another:"
    for item in outlook.assumptions:
        source = "" if item.source == "assumed" else f" ({item.source})"
        yield f"  {item.name:<14}{item.value:<12.6g}{item.unit}: {item.about}{source}"


def _row(title: str, cells: list[str]) -> str:
    return (f"{title:<{_TITLE}}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells)).rstrip()


def _rows(outlook: "Outlook", title: str, value: "Callable[[Laid], float | None]") -> Iterator[str]:
    """A row of numbers; none where no layout has anything there."""
    values = [value(laid) for laid in outlook.laid]
    if any(values):
        yield _row(f"  {title}", ["-" if item is None else number(float(item)) for item in values])


def _memory_rows(outlook: "Outlook") -> Iterator[str]:
    yield "GB on a device"
    for field, title in _MEMORY.items():

        def size(laid: "Laid", field: str = field) -> float | None:
            held: int | None = getattr(laid.memory, field)
            return None if held is None else held / _GB

        yield from _rows(outlook, title, size)


def _network_rows(outlook: "Outlook") -> Iterator[str]:
    names = dict.fromkeys(part.name for laid in outlook.laid for part in laid.step.parts if part.sent)
    if names:
        yield "MB sent by each, a step"
    for name in names:

        def sent(laid: "Laid", name: str = name) -> float | None:
            return next((part.sent / _MB for part in laid.step.parts if part.name == name), None)

        yield from _rows(outlook, name, sent)


def _second_rows(outlook: "Outlook") -> Iterator[str]:
    yield "seconds of a step"
    yield from _rows(outlook, "sampling and rewards", lambda laid: laid.step.of("sample"))
    yield from _rows(outlook, "update", lambda laid: laid.step.of("update"))
    yield from _rows(outlook, "network", lambda laid: laid.step.of("network"))
    yield from _rows(outlook, "in all", lambda laid: laid.step.seconds)
    yield from _rows(outlook, "speed-up", lambda laid: laid.speedup)


def _most(outlook: "Outlook") -> Iterator[str]:
    for laid in outlook.laid:
        part = laid.step.longest
        share = percent(part.seconds / laid.step.seconds)
        yield f"{laid.step.layout}: {part.name} {share} of a step"


def _limit_line(limit: Limit | None, last: Step) -> str:
    if limit is None:
        return f"Scaling goes on to {last.layout.total} devices at least."
    share = percent(limit.part.seconds / limit.seconds)
    return (
        f"Scaling stops at {limit.devices} devices: twice as many are {limit.gain:.2f} times as fast. Then "
        f"{limit.part.name} {share} of a step: {_WHY[limit.part.name]}."
    )


def outlook_as_json(outlook: "Outlook") -> Mapping[str, object]:
    """The same as plain data."""
    return {
        "fits": outlook.fits,
        "model": asdict(outlook.model),
        "work": asdict(outlook.work),
        "assumptions": {item.name: item._asdict() for item in outlook.assumptions},
        "paces": asdict(outlook.paces),
        "is_measured": outlook.is_measured,
        "layouts": [
            {
                **_step_as_json(laid.step),
                "memory": asdict(laid.memory),
                "fits": laid.fits,
                "speedup": laid.speedup,
            }
            for laid in outlook.laid
        ],
        "curve": [_step_as_json(step) for step in outlook.curve],
        "limit": None
        if outlook.limit is None
        else {**outlook.limit._asdict(), "part": outlook.limit.part._asdict()},
    }


def _step_as_json(step: Step) -> dict[str, object]:
    return {
        "layout": str(step.layout),
        **step.layout._asdict(),
        "seconds": step.seconds,
        "parts": [part._asdict() for part in step.parts],
    }
