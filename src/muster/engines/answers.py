"""Completions from what vLLM answers, on servers and in this process: each number looked at.

The endpoint of a server is vLLM's own for tokens in and tokens out, `/inference/v1/generate`: no text is made
or read on the way. Checked with vLLM 0.32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from muster.engines.asking import Ask, settings_of
from muster.engines.base import Sampling
from muster.engines.wire import FaultError
from muster.records import Completion, FinishReason

GENERATE = "/inference/v1/generate"
LOADING = "muster-loading"
"""What vLLM says it holds while its weights are being replaced: half of them never pass for either."""
FLOOR = -9990.0
"""A vLLM server writes -9999 for what has no probability, and for what is not a number."""


class BadAnswerError(FaultError):
    """An answer that can't be used: numbers are missing, or are none."""


class StaleError(FaultError):
    """An answer by other weights than those that were loaded last."""


class LoadingError(FaultError):
    """An answer from while another process that asks this server gave it weights: to be asked for again."""


@dataclass(frozen=True, kw_only=True)
class Label:
    """By what weights an answer has to be."""

    name: str
    """Unique to this load."""
    version: int
    is_adapter: bool


def body_of(ask: Ask, sampling: Sampling, label: Label) -> dict[str, object]:
    """The request to a server."""
    body: dict[str, object] = {
        "token_ids": list(ask.prompt.ids),
        "sampling_params": settings_of(ask, sampling),
    }
    return {**body, "model": label.name} if label.is_adapter else body


def read(answer: object, ask: Ask, sampling: Sampling, label: Label) -> list[Completion]:
    """The completions in the order of their index; StaleError, or BadAnswerError with what is wrong."""
    if not isinstance(answer, Mapping):
        raise BadAnswerError(f"the answer is {_start(answer)} instead of an object")
    if label.is_adapter and answer.get("model") != label.name:
        raise StaleError(f"the completions are by {answer.get('model')!r}, and {label.name!r} was asked for")
    choices = answer.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, Mapping) for choice in choices):
        raise BadAnswerError(f"`choices` is {_start(choices)} instead of a list of objects")
    ordered = {index: choice for choice in choices if type(index := choice.get("index")) is int}
    if len(choices) != ask.count or ordered.keys() != set(range(ask.count)):
        raise BadAnswerError(
            f"{ask.count} completions were asked for, and {len(choices)} came, or not each once"
        )
    return [_completion(ordered[index], sampling, label) for index in range(ask.count)]


def _completion(choice: Mapping[str, object], sampling: Sampling, label: Label) -> Completion:
    ids = _ids(choice.get("token_ids"))
    if not label.is_adapter:
        _refuse_stale(choice.get("weight_versions"), len(ids), label)
    entries = _entries(choice.get("logprobs"), ids)
    logprobs = tuple(_logprob(entry.get("logprob"), "logprob") for entry in entries)
    if sampling.temperature == 0:
        # The likeliest token was certain; what vLLM says is of the distribution before.
        logprobs = (0.0,) * len(ids)
    return Completion(
        ids=ids,
        sampler_logprobs=logprobs,
        finish_reason=_reason(choice.get("finish_reason")),
        version=label.version,
        kept=tuple(_kept(entry) for entry in entries) if sampling.top_k else None,
    )


def _ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(token) is int for token in value):
        raise BadAnswerError(f"`token_ids` is {_start(value)} instead of a list of token ids")
    return tuple(value)


def _entries(logprobs: object, ids: tuple[int, ...]) -> list[Mapping[str, object]]:
    """An entry for each token; they are matched by place, and each has to name its token."""
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list) or not all(isinstance(entry, Mapping) for entry in content):
        raise BadAnswerError(f"`logprobs` is {_start(logprobs)} instead of one for each token")
    if (tokens := [entry.get("token_id") for entry in content]) != list(ids):
        raise BadAnswerError(f"logprobs are of the tokens {_start(tokens)}, and sampled were {_start(ids)}")
    return content


def _logprob(value: object, what: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < FLOOR:
        raise BadAnswerError(f"a {what} is {_start(value)}: the sampler's weights are broken, or its numbers")
    return float(value)


def _kept(entry: Mapping[str, object]) -> tuple[int, ...]:
    """The tokens that top-k, top-p and min-p left, in ascending order: those that have a probability."""
    top = entry.get("top_logprobs")
    if not isinstance(top, list) or not all(isinstance(other, Mapping) for other in top):
        raise BadAnswerError(f"`top_logprobs` is {_start(top)} instead of a list")
    kept = {
        other.get("token_id")
        for other in top
        if isinstance(value := other.get("logprob"), int | float) and value > FLOOR
    }
    if entry.get("token_id") not in kept:
        raise BadAnswerError(f"token {entry.get('token_id')} was sampled and is not among those kept")
    return tuple(sorted(token for token in kept if type(token) is int))


def _reason(value: object) -> FinishReason:
    match value:
        case "stop":
            return "stop"
        case "length":
            return "length"
        case _:
            raise BadAnswerError(f"a completion ended with {value!r} instead of 'stop' or 'length'")


def _refuse_stale(spans: object, num_tokens: int, label: Label) -> None:
    """Refuses tokens by other weights than the label's; vLLM names the weights of every stretch of tokens."""
    if not isinstance(spans, list) or not all(isinstance(span, Mapping) for span in spans):
        raise BadAnswerError(
            "the answer doesn't say which weights sampled it (`weight_versions`); vLLM 0.32 does"
        )
    if odd := [span.get("version") for span in spans if span.get("version") != label.name]:
        if LOADING in odd:
            raise LoadingError("the server was being given its weights")
        raise StaleError(f"the tokens were sampled by weights {odd[0]!r}, and {label.name!r} was loaded")
    if sum(_length(span) for span in spans) != num_tokens:
        raise BadAnswerError(f"`weight_versions` is {_start(spans)}, which is not {num_tokens} tokens")


def _length(span: Mapping[str, object]) -> int:
    start, end = span.get("start"), span.get("end")
    return end - start if isinstance(start, int) and isinstance(end, int) else 0


def _start(value: object) -> str:
    """The value's first letters, on one line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
