"""The prompts that environments open with, and how the policy is told of their tools."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from muster.data import render_chats
from muster.data.encoding import Tokenizer
from muster.envs.stage import Failed, Order, Stage
from muster.envs.tools import described
from muster.errors import ConfigError, DataError
from muster.records import Message, Sample
from muster.rewards.calling import prompt_text

_SHOWN = 5


class Telling(NamedTuple):
    """How the policy is told of an environment's tools."""

    options: dict[str, object]
    """For the chat template: `tools` among them where it reads them."""
    text: str
    """For the system message; empty where the template tells, or there are no tools."""


def telling(
    tools: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, options: Mapping[str, object]
) -> Telling:
    """By the chat template where it reads tools, else in the system message."""
    if not tools:
        return Telling(dict(options), "")
    if "tools" in options:
        raise ConfigError("data.chat_template_kwargs sets tools, which data.environment brings. Remove it.")
    probe = [Sample(id="(tools)", messages=({"role": "user", "content": "Hello."},))]
    told: dict[str, object] = {**options, "tools": [dict(one) for one in tools]}
    if render_chats(probe, tokenizer, told) != render_chats(probe, tokenizer, options):
        return Telling(told, "")
    return Telling(dict(options), described(tools))


def row_of(sample: Sample) -> dict[str, object]:
    """What an environment is reset with: the columns, the messages, and the last message of the user."""
    messages = [dict(message) for message in sample.messages]
    return {**sample.columns, "messages": messages, "prompt": prompt_text(sample)}


def opened(sample: Sample, answer: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages that an episode begins with: those that `reset` gave, or the row's own."""
    given = answer["messages"]
    return tuple(sample.messages) if given is None else tuple(given)


def openings_of(samples: Sequence[Sample], stage: Stage) -> list[tuple[Message, ...]]:
    """The messages that each sample's environment opens with, each reset once to hear them.

    DataError names the rows that can't be reset.
    """
    orders = [Order(place, "open", f"open {place}", row_of(sample)) for place, sample in enumerate(samples)]
    answers = stage.ask(orders)
    if failed := [(s.id, a.reason) for s, a in zip(samples, answers, strict=True) if isinstance(a, Failed)]:
        listed = "; ".join(f"sample {name}: it {reason}" for name, reason in failed[:_SHOWN])
        raise DataError(f"data.environment can't be reset on {len(failed)} of {len(samples)} rows: {listed}.")
    return [
        opened(sample, answer)
        for sample, answer in zip(samples, answers, strict=True)
        if not isinstance(answer, Failed)
    ]


def shown(sample: Sample, opening: Sequence[Message], told: Telling) -> Sample:
    """The sample as the model is shown it: the opening, and the tools where the template is silent."""
    messages = tuple(opening)
    if not told.text:
        return replace(sample, messages=messages)
    first, *rest = messages
    if first.get("role") != "system":
        return replace(sample, messages=({"role": "system", "content": told.text}, *messages))
    return replace(sample, messages=({**first, "content": f"{first.get('content')}\n\n{told.text}"}, *rest))
