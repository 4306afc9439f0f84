"""Calling one reward on graded requests: each gets a number, an abstention, or a failure with its reason.

Nothing a reward function does with its arguments, and nothing it raises or returns, reaches further
than the completions it was asked about.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import NamedTuple, cast

from muster.records import GradingRequest, Message, Sample
from muster.rewards.conventions import TRUTH_COLUMNS, call
from muster.rewards.numbers import NotANumberError, as_list, as_number
from muster.rewards.reward import Reward
from muster.toolcalls import with_calls

_MAX_REASON = 400


class Failure(NamedTuple):
    """Why there is no verdict."""

    reason: str


Verdict = float | Failure | None
"""A number, a failure, or None: the reward abstained."""


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """What TRL's `trainer_state` is mostly asked for."""

    global_step: int
    """The step, counted from 1; 0 outside a run."""
    max_steps: int
    """Steps of the run; 0 where that isn't known."""


@dataclass(kw_only=True)
class Logged:
    """What rewards noted on the side through `log_metric` and `log_extra`."""

    metrics: dict[str, list[float]] = field(default_factory=dict)
    """Values by name, in the order they came."""
    extras: dict[str, list[object]] = field(default_factory=dict)
    """One value per completion of a batch, by column name."""

    def log_metric(self, name: str, value: object) -> None:
        """Notes a number under a name."""
        number = as_number(value)
        if number is not None:
            self.metrics.setdefault(str(name), []).append(number)

    def log_extra(self, column: str, values: Sequence[object]) -> None:
        """Notes one value for each completion of the batch."""
        self.extras.setdefault(str(column), []).extend(deepcopy(list(values)))

    def add(self, more: "Logged") -> None:
        """Notes what was noted elsewhere, behind what is there."""
        for name, numbers in more.metrics.items():
            self.metrics.setdefault(name, []).extend(numbers)
        for column, values in more.extras.items():
            self.extras.setdefault(column, []).extend(values)

    def clear(self) -> None:
        """Forgets everything."""
        self.metrics.clear()
        self.extras.clear()


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a reward can ask for that isn't about one completion."""

    state: TrainerState
    logged: Logged
    limit_s: float | None = None
    """Seconds that each awaited call may take; None sets no limit."""


def verdicts(reward: Reward, requests: Sequence[GradingRequest], around: Surroundings) -> list[Verdict]:
    """The reward's verdict on each request."""
    if not requests:
        return []
    if reward.convention == "batch":
        return _batch(reward, requests, around)
    ask = _call_verl if reward.convention == "verl" else _call_one
    returned = [_guarded(lambda request=request: ask(reward, request, around)) for request in requests]
    values = _awaited(returned, around.limit_s)
    if reward.convention == "verl":
        values = [_guarded(lambda value=value: _score_of(reward, value, around)) for value in values]
    return [_verdict(value) for value in values]


def _batch(reward: Reward, requests: Sequence[GradingRequest], around: Surroundings) -> list[Verdict]:
    """The verdicts of a reward that sees all completions at once; if the call fails, all of them fail."""
    [returned] = _awaited([_guarded(lambda: _call_batch(reward, requests, around))], around.limit_s)
    if isinstance(returned, Failure):
        return whole_batch(returned, len(requests))
    try:
        values = as_list(returned)
    except Exception as error:
        return whole_batch(_failure(error), len(requests))
    found = [_verdict(value) for value in values]
    if len(found) != len(requests):
        reason = f"gave {len(found)} values for {len(requests)} completions; one for each is expected"
        return whole_batch(Failure(reason), len(requests))
    return found


def whole_batch(failure: Failure, size: int) -> list[Verdict]:
    """The failure of a call for all, as each of them is told it."""
    return [Failure(f"failed its whole batch of {size}: {failure.reason}")] * size


def _call_one(reward: Reward, request: GradingRequest, around: Surroundings) -> object:
    sample, completion = request.sample, request.completion
    supplied: Mapping[str, Callable[[], object]] = {
        "completion": lambda: request.text,
        "prompt": lambda: prompt_text(sample),
        "prompt_text": lambda: request.prompt_text,
        "messages": lambda: _copied(sample.messages),
        "plain_text": lambda: request.plain_text,
        "completion_ids": lambda: list(completion.ids),
        "episode": lambda: deepcopy(request.episode),
        "finish_reason": lambda: completion.finish_reason,
        "sample_id": lambda: sample.id,
        "columns": lambda: deepcopy(dict(sample.columns)),
        "trainer_state": lambda: around.state,
        "log_metric": lambda: around.logged.log_metric,
    }
    return call(
        reward.function,
        reward.signature,
        supplied=supplied,
        columns=deepcopy(dict(sample.columns)),
        options=deepcopy(dict(reward.options)),
    )


def _call_verl(reward: Reward, request: GradingRequest, around: Surroundings) -> object:
    columns = request.sample.columns
    supplied: Mapping[str, Callable[[], object]] = {
        "data_source": lambda: deepcopy(columns.get("data_source")),
        "solution_str": lambda: request.plain_text,
        "ground_truth": lambda: deepcopy(_truth(columns)),
        "extra_info": lambda: deepcopy(columns.get("extra_info")) or {},
    }
    options = deepcopy(dict(reward.options))
    return call(reward.function, reward.signature, supplied=supplied, columns={}, options=options)


def _truth(columns: Mapping[str, object]) -> object:
    """What verl calls the ground truth, from the first column that holds it."""
    for name in TRUTH_COLUMNS:
        value = columns.get(name)
        if isinstance(value, Mapping):
            value = value.get("ground_truth")
        if value is not None:
            return value
    return None


def _score_of(reward: Reward, value: object, around: Surroundings) -> object:
    """The score of what `compute_score` gave; the other numbers of a dictionary become metrics."""
    if not isinstance(value, Mapping):
        return value
    if "score" not in value:
        raise NotANumberError(f"gave a dictionary without 'score' ({', '.join(map(str, value)) or 'empty'})")
    for key, item in value.items():
        if key != "score" and isinstance(item, int | float):
            around.logged.log_metric(f"{reward.name}/{key}", item)
    return value["score"]


def _call_batch(reward: Reward, requests: Sequence[GradingRequest], around: Surroundings) -> object:
    names = dict.fromkeys(name for request in requests for name in request.sample.columns)
    supplied: Mapping[str, Callable[[], object]] = {
        "prompts": lambda: [_trl_prompt(request.sample) for request in requests],
        "completions": lambda: [_trl_completion(request) for request in requests],
        "completion_ids": lambda: [list(request.completion.ids) for request in requests],
        "trainer_state": lambda: around.state,
        "log_extra": lambda: around.logged.log_extra,
        "log_metric": lambda: around.logged.log_metric,
    }
    return call(
        reward.function,
        reward.signature,
        supplied=supplied,
        columns={
            name: [deepcopy(request.sample.columns.get(name)) for request in requests] for name in names
        },
        options=deepcopy(dict(reward.options)),
    )


def prompt_text(sample: Sample) -> str:
    """The prompt as a reader sees it: the raw text, or the last message of the user."""
    if sample.text is not None:
        return sample.text
    users = [message for message in sample.messages if message.get("role") == "user"]
    content = users[-1].get("content") if users else ""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _copied(messages: Sequence[Message]) -> list[dict[str, object]]:
    return [deepcopy(dict(message)) for message in messages]


def _trl_prompt(sample: Sample) -> object:
    return sample.text if sample.text is not None else _copied(sample.messages)


def _trl_completion(request: GradingRequest) -> object:
    """Text for a raw prompt, messages for a chat: one without special tokens, or those of an episode."""
    if request.episode is not None:
        read = with_calls if request.episode.num_calls else dict
        return deepcopy([read(message) for message in request.episode.messages])
    if request.sample.text is not None:
        return request.plain_text
    return [{"role": "assistant", "content": request.plain_text}]


def _verdict(value: object) -> Verdict:
    if isinstance(value, Failure):
        return value
    try:
        return as_number(value)
    except Exception as error:
        return _failure(error)


def _guarded(function: Callable[[], object]) -> object:
    """What the function returns, or the failure that it raised; Ctrl-C passes."""
    try:
        return function()
    except (Exception, SystemExit) as error:
        return _failure(error)


def _awaited(values: Sequence[object], limit_s: float | None) -> list[object]:
    """The values, with those that have to be awaited replaced by what they give; all are awaited at once."""
    waiting = [index for index, value in enumerate(values) if inspect.isawaitable(value)]
    result = list(values)
    if waiting:
        awaitables = [cast("Awaitable[object]", values[index]) for index in waiting]
        for index, value in zip(waiting, _run(awaitables, limit_s), strict=True):
            result[index] = value
    return result


def _run(awaitables: Sequence[Awaitable[object]], limit_s: float | None) -> list[object]:
    """Results in an event loop of their own, in a thread of its own: a notebook's loop is already running."""
    results: list[object] = []

    async def one(awaitable: Awaitable[object]) -> object:
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await awaitable
        except TimeoutError as error:
            return timed_out(limit_s) if limit_s and limit.expired() else _failure(error)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            return _failure(error)

    async def everything() -> list[object]:
        return list(await asyncio.gather(*(one(awaitable) for awaitable in awaitables)))

    thread = threading.Thread(
        target=lambda: results.extend(asyncio.run(everything())), name="async rewards", daemon=True
    )
    thread.start()
    thread.join()
    return results


def timed_out(limit_s: float) -> Failure:
    """The failure of a call that took longer."""
    return Failure(f"timed out after {limit_s:g} s")


def _failure(error: BaseException) -> Failure:
    return Failure(str(error) if isinstance(error, NotANumberError) else reason_of(error))


def reason_of(error: BaseException) -> str:
    """What the exception says, and where in the user's code it came from."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # an exception's own words may fail, too
        text = type(error).__name__
    text = text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "..."
    last = extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)
    return f"raised {text}{where}"
