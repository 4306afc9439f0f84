"""Prompts, settings of sampling and completions as plain values, for JSON: to another process, or to disk."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from muster.engines.base import Sampling
from muster.records import Completion, Prompt, StreamKey
from muster.rewards.pool.wire import as_completion, plain_completion


def plain_prompt(prompt: Prompt) -> dict[str, object]:
    """The prompt's ids and the key of its random stream."""
    return {"ids": list(prompt.ids), "key": list(prompt.key)}


def as_prompt(read: Mapping[str, Any]) -> Prompt:
    """What `plain_prompt` made plain."""
    return Prompt(ids=tuple(read["ids"]), key=StreamKey(*read["key"]))


def plain_sampling(sampling: Sampling) -> dict[str, object]:
    """Every setting, sets and tuples as lists."""
    lists = {"stop_ids": sorted(sampling.stop_ids), "stop_strings": list(sampling.stop_strings)}
    return {**asdict(sampling), **lists}


def as_sampling(read: Mapping[str, Any]) -> Sampling:
    """What `plain_sampling` made plain."""
    stops = {"stop_ids": frozenset(read["stop_ids"]), "stop_strings": tuple(read["stop_strings"])}
    return Sampling(**{**read, **stops})


def plain_groups(groups: Sequence[Sequence[Completion]]) -> list[list[dict[str, object]]]:
    """The completions of each prompt; a float keeps all its digits in JSON."""
    return [[plain_completion(completion) for completion in members] for members in groups]


def as_groups(read: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[Completion]]:
    """What `plain_groups` made plain."""
    return [[as_completion(completion) for completion in members] for members in read]
