"""What crosses to a worker and back, as strict JSON; values that JSON lacks go under a tag of their own."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import date, datetime, time
from decimal import Decimal
from math import isfinite
from typing import Any

from muster.records import Completion, Episode, GradingRequest, Rollout, Sample, Score

TAG = "$muster"
"""Key of an object that stands for a value of another type."""

_SHOWN_CHARS = 200
"""Of a value that has no form here."""
_MAX_PLAIN_BITS = 10_000
"""Longer whole numbers go as hexadecimal text: Python refuses to read that many decimal digits."""


class UnsendableError(TypeError):
    """A value has no form in which it could reach another process."""


def dumps(value: object) -> str:
    """The value as one line of strict JSON."""
    return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))


def loads(line: bytes | str) -> Any:
    """The value of a line that `dumps` wrote; arrays come back as lists, the rest as it was."""
    return json.loads(line, object_hook=_untagged)


def sendable(value: object) -> object:
    """The value, or a short text of one that has no form on the wire."""
    try:
        dumps(value)
    except (UnsendableError, ValueError, RecursionError):
        return f"{type(value).__name__} {ascii(value)[:_SHOWN_CHARS]}"
    return value


def dump_sample(sample: Sample) -> str:
    """The sample as JSON; UnsendableError names the column that has no such form."""
    columns = {}
    for name, value in sample.columns.items():
        try:
            columns[name] = _plain(value)
        except UnsendableError as error:
            raise UnsendableError(f"column {name!r} holds {error}") from error
    fields = {"id": sample.id, "messages": _plain(sample.messages), "text": sample.text}
    return json.dumps({**fields, "columns": columns}, allow_nan=False, separators=(",", ":"))


def dump_request(request: GradingRequest, sample: str) -> str:
    """The request as JSON around its sample's; what the engine computed stays here."""
    completion = request.completion
    rest = json.dumps(
        {
            "prompt_text": request.prompt_text,
            "ids": completion.ids,
            "finish_reason": completion.finish_reason,
            "version": completion.version,
            "text": request.text,
            "plain_text": request.plain_text,
            "episode": _plain(_dump_episode(request.episode)),
        },
        separators=(",", ":"),
    )
    return f'{{"sample":{sample},{rest[1:]}'


def as_request(read: Mapping[str, Any]) -> GradingRequest:
    """The request that `dump_request` wrote."""
    ids = tuple(read["ids"])
    return GradingRequest(
        sample=Sample(**read["sample"]),
        prompt_text=read["prompt_text"],
        completion=Completion(
            ids=ids,
            # Rewards never see them, so they aren't sent.
            sampler_logprobs=(0.0,) * len(ids),
            finish_reason=read["finish_reason"],
            version=read["version"],
        ),
        text=read["text"],
        plain_text=read["plain_text"],
        episode=_as_episode(read["episode"]),
    )


def plain_completion(completion: Completion) -> dict[str, object]:
    """The completion as plain values, all of it; a float keeps all its digits in JSON."""
    return {
        "ids": list(completion.ids),
        "sampler_logprobs": list(completion.sampler_logprobs),
        "finish_reason": completion.finish_reason,
        "version": completion.version,
        "kept": None if completion.kept is None else [list(ids) for ids in completion.kept],
        "emitted": None if completion.emitted is None else list(completion.emitted),
    }


def as_completion(read: Mapping[str, Any]) -> Completion:
    """The completion of these plain values, whatever else stands beside them."""
    # What was kept before there were environments doesn't say which tokens the policy emitted: all of them.
    emitted = read.get("emitted")
    return Completion(
        ids=tuple(read["ids"]),
        sampler_logprobs=tuple(read["sampler_logprobs"]),
        finish_reason=read["finish_reason"],
        version=read["version"],
        kept=None if read["kept"] is None else tuple(map(tuple, read["kept"])),
        emitted=None if emitted is None else tuple(emitted),
    )


def dump_rollout(rollout: Rollout) -> object:
    """The rollout as plain values, all of it."""
    score = rollout.score
    return {
        **plain_completion(rollout.completion),
        "text": rollout.text,
        "value": score.value,
        "parts": dict(score.parts),
        "failures": dict(score.failures),
        "episode": _dump_episode(rollout.episode),
    }


def as_rollout(read: Mapping[str, Any]) -> Rollout:
    """The rollout of these plain values."""
    return Rollout(
        completion=as_completion(read),
        text=read["text"],
        score=Score(value=read["value"], parts=read["parts"], failures=read["failures"]),
        episode=_as_episode(read["episode"]),
    )


def _dump_episode(episode: Episode | None) -> dict[str, object] | None:
    return None if episode is None else {item.name: getattr(episode, item.name) for item in fields(episode)}


def _as_episode(read: Mapping[str, Any] | None) -> Episode | None:
    return None if read is None else Episode(**{**read, "messages": tuple(read["messages"])})


def _plain(value: object) -> object:
    """The value with a tagged object for each part that JSON can't hold."""
    match value:
        case None | bool() | str():
            return value
        case int() | float():
            return _plain_number(value)
        case list():
            return [_plain(item) for item in value]
        case Mapping():
            return _plain_mapping(value)
        case _:
            return _plain_other(value)


def _plain_number(value: float) -> object:
    if isinstance(value, float):
        return float(value) if isfinite(value) else _tagged("float", repr(float(value)))
    return int(value) if value.bit_length() <= _MAX_PLAIN_BITS else _tagged("int", hex(value))


def _plain_mapping(value: Mapping[object, object]) -> object:
    if TAG not in value and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    return _tagged("dict", [[_plain(key), _plain(item)] for key, item in value.items()])


def _plain_other(value: object) -> object:
    for kind, (types, form) in _FORMS.items():
        if isinstance(value, types):
            return _tagged(kind, form(value))
    to_list = getattr(value, "tolist", None)
    if callable(to_list) and type(listed := to_list()) is not type(value):
        return _plain(listed)
    raise UnsendableError(
        f"{type(value).__name__}, which can't be sent to another process; turn it into text, numbers or lists"
    )


def _tagged(kind: str, value: object) -> dict[str, object]:
    return {TAG: kind, "value": value}


def _items(values: Iterable[object]) -> list[object]:
    return [_plain(item) for item in values]


# A datetime is a date too, so it comes first.
_FORMS: dict[str, tuple[type | tuple[type, ...], Callable[[Any], object]]] = {
    "tuple": (tuple, _items),
    "bytes": ((bytes, bytearray), lambda data: b64encode(data).decode("ascii")),
    "datetime": (datetime, datetime.isoformat),
    "date": (date, date.isoformat),
    "time": (time, time.isoformat),
    "decimal": (Decimal, str),
    "set": ((set, frozenset), _items),
}

_READERS: dict[str, Callable[[Any], object]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "tuple": tuple,
    "dict": dict,
    "bytes": b64decode,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "decimal": Decimal,
    "set": set,
}


def _untagged(read: dict[str, Any]) -> object:
    return _READERS[read[TAG]](read["value"]) if TAG in read else read
