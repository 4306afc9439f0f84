"""Rollouts of several turns: all that live are sampled together, then their environments answer.

Token in, token out: what the policy emitted is appended as it was sampled. What the chat template puts
between turns, and what environments answer, is tokenized once and appended as tokens that are not the
policy's: they have no logprob and count in nothing but the context.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any, NamedTuple, Protocol

from muster.clock import Clock
from muster.dist import world_size
from muster.engines.base import Engine, Sampling
from muster.envs import Failed, Glue, Order, Stage
from muster.envs.opening import opened, row_of
from muster.records import (
    Branch,
    Completion,
    Episode,
    FinishReason,
    Group,
    Message,
    Prompt,
    Sample,
)
from muster.rewards.calling import Logged

OTHER_OPENING = (
    "opened with other messages than when the prompts were prepared; what reset returns may depend on the "
    "row alone"
)


class Detokenizer(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def decode(self, token_ids: list[int], /, *, skip_special_tokens: bool = False) -> str | list[str]:
        """The text of some ids."""
        ...


class Start(NamedTuple):
    """What the rollouts of a group begin with."""

    sample: Sample
    opening: tuple[Message, ...]
    """The messages that the sample's environment opened with when the prompts were prepared."""
    prompt: Prompt


class Played(NamedTuple):
    """A rollout that has come to its end."""

    completion: Completion
    episode: Episode


@dataclass(eq=False, kw_only=True)
class _Course:
    """A rollout under way."""

    number: int
    """Among all that are played at once: what its environment goes by."""
    start: Start
    index: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    emitted: list[bool] = field(default_factory=list)
    kept: list[tuple[int, ...]] | None = None
    finish: FinishReason = "stop"
    version: int = 0
    messages: list[Message] = field(default_factory=list)
    failure: str | None = None
    num_calls: int = 0
    num_failed_calls: int = 0

    def say(self, turn: Completion, text: str) -> None:
        """Appends what the policy emitted."""
        self.ids += turn.ids
        self.logprobs += turn.sampler_logprobs
        self.emitted += [True] * len(turn.ids)
        if turn.kept is not None:
            self.kept = [*(self.kept or []), *turn.kept]
        self.finish, self.version = turn.finish_reason, turn.version
        self.messages.append({"role": "assistant", "content": text})

    def hear(self, messages: Sequence[Message], ids: Sequence[int]) -> None:
        """Appends what the policy is given: the joint with the reply in it."""
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.emitted += [False] * len(ids)
        if self.kept is not None:
            self.kept += [()] * len(ids)
        self.messages += messages

    def order(self, do: str, turn: int, text: str | None = None) -> Order:
        """An order to its environment; what that draws is named as the policy's own draws are."""
        key = self.start.prompt.key
        # What is drawn at the reset is the same for the group, whose prompt is shared.
        seed = "-".join(map(str, key if do == "reset" else (*key, self.index, turn)))
        row = row_of(self.start.sample) if do == "reset" else None
        return Order(self.number, do, f"{do} {seed}", row, text)

    def played(self, parts: Mapping[str, float]) -> Played:
        """The rollout as records."""
        completion = Completion(
            ids=tuple(self.ids),
            sampler_logprobs=tuple(self.logprobs),
            finish_reason=self.finish,
            version=self.version,
            kept=None if self.kept is None else tuple(self.kept),
            emitted=tuple(self.emitted),
        )
        episode = Episode(
            messages=tuple(self.messages),
            parts=parts,
            failure=self.failure,
            num_calls=self.num_calls,
            num_failed_calls=self.num_failed_calls,
        )
        return Played(completion, episode)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What rollouts of several turns are played on."""

    stage: Stage
    glue: Glue
    max_tokens: int
    """Longest prompt and rollout together, in tokens."""


@dataclass(frozen=True, kw_only=True)
class Play:
    """Plays the rollouts of some prompts, turn by turn."""

    scene: Scene
    engine: Engine
    tokenizer: Detokenizer
    end_ids: frozenset[int]
    sampling: Sampling
    """`max_tokens` bounds what the policy emits in a whole rollout."""
    clock: Clock
    step: int = 0
    """Of the run, and of how many: environments whose reward asks are told."""
    num_steps: int = 0
    logged: Logged = field(default_factory=Logged)
    """Takes what rewards of environments note on the side."""

    def groups(self, starts: Sequence[Start]) -> list[list[Played]]:
        """`group_size` rollouts of each start, in order.

        An episode ends when its environment says so, raises or takes too long; when the policy has spoken
        `max_turns` times; when a turn is cut at its limit; and, as truncated, when the tokens that it may
        emit are used up, or the next turn would not fit the context.
        """
        size = self.sampling.group_size
        courses = [
            _Course(number=place * size + index, start=start, index=index)
            for place, start in enumerate(starts)
            for index in range(size)
        ]
        with self.clock.phase("environment"):
            self._open(courses)
        live, max_turns = courses, self.scene.stage.described.limits.max_turns
        for turn in range(max_turns):
            # Where ranks divide the weights they sample together, be it without a prompt.
            if not live and world_size() == 1:
                break
            with self.clock.phase("sample"):
                said = self._sampled(live, turn)
            with self.clock.phase("environment"):
                live = self._answered(live, said, turn, is_last=turn + 1 == max_turns)
        with self.clock.phase("environment"):
            played = self._ended(courses)
        return [played[first : first + size] for first in range(0, len(played), size)]

    def _open(self, courses: Sequence[_Course]) -> None:
        """Resets every environment; one that can't be costs its rollout, which still speaks once."""
        answers = self.scene.stage.ask([course.order("reset", 0) for course in courses])
        for course, answer in zip(courses, answers, strict=True):
            if isinstance(answer, Failed):
                course.failure = answer.reason
            elif opened(course.start.sample, answer) != course.start.opening:
                course.failure = OTHER_OPENING

    def _sampled(self, live: Sequence[_Course], turn: int) -> list[Completion]:
        """The next turn of each. The first is sampled by groups, whose prompt is shared."""
        limits = [self._room(course) for course in live]
        size = self.sampling.group_size if turn == 0 else 1
        sampling = replace(self.sampling, group_size=size, max_tokens=max(limits, default=1))
        prompts = [
            course.start.prompt
            if turn == 0
            else replace(
                course.start.prompt,
                ids=(*course.start.prompt.ids, *course.ids),
                branch=Branch(course.index, turn),
            )
            for course in live[::size]
        ]
        groups = self.engine.generate(prompts, sampling)
        turns = [completion for group in groups for completion in group]
        # A draw depends on its place in the stream alone, so what is cut is what a lower limit had given.
        return [_cut(completion, limit) for completion, limit in zip(turns, limits, strict=True)]

    def _room(self, course: _Course) -> int:
        """Tokens that the next turn may have; below 1 where there can't be one."""
        scene = self.scene
        room = [
            self.sampling.max_tokens - sum(course.emitted),
            scene.max_tokens - len(course.start.prompt.ids) - len(course.ids),
        ]
        per_turn = scene.stage.described.limits.max_turn_tokens
        return min([*room, *([] if per_turn is None else [per_turn])])

    def _answered(
        self, live: Sequence[_Course], said: Sequence[Completion], turn: int, *, is_last: bool
    ) -> list[_Course]:
        """Hands each turn to its environment; those that go on."""
        for course, completion in zip(live, said, strict=True):
            course.say(completion, self._text(completion.ids))
        asked = [course for course in live if course.failure is None]
        orders = [course.order("step", turn, str(course.messages[-1]["content"])) for course in asked]
        going_on: list[tuple[_Course, list[Message]]] = []
        for course, answer in zip(asked, self.scene.stage.ask(orders), strict=True):
            if isinstance(answer, Failed):
                course.failure = answer.reason
                continue
            course.num_calls += answer["calls"]
            course.num_failed_calls += answer["failed"]
            if answer["messages"] is not None and course.finish == "stop" and not is_last:
                going_on.append((course, answer["messages"]))
        return self._glued(going_on)

    def _glued(self, going_on: Sequence[tuple[_Course, list[Message]]]) -> list[_Course]:
        """Appends the replies; a rollout that has no room for another turn is cut where it is."""
        stays: list[_Course] = []
        joints = self.scene.glue.between([messages for _, messages in going_on])
        for (course, messages), joint in zip(going_on, joints, strict=True):
            ids = joint.after(course.ids)
            if not self._fits(course, ids):
                course.finish = "length"
                continue
            course.hear(messages, ids)
            stays.append(course)
        return stays

    def _fits(self, course: _Course, ids: Sequence[int]) -> bool:
        """Another turn of at least one token has room behind these ids."""
        longer = len(course.start.prompt.ids) + len(course.ids) + len(ids)
        return sum(course.emitted) < self.sampling.max_tokens and longer < self.scene.max_tokens

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(without_end(ids, self.end_ids)))

    def _last_order(self, course: _Course) -> Order:
        """Asks for the reward, and says how the rollout ended where that is asked for; or lets go."""
        if course.failure is not None:
            return course.order("forget", 0)
        order = course.order("reward", 0)
        if not self.scene.stage.described.is_told_ends:
            return order
        ended = {"completion_ids": course.ids, "step": self.step, "num_steps": self.num_steps}
        return order._replace(ended=ended)

    def _ended(self, courses: Sequence[_Course]) -> list[Played]:
        """Asks for the rewards of those whose environments did their work, and lets go of the others."""
        orders = [self._last_order(course) for course in courses]
        played: list[Played] = []
        for course, answer in zip(courses, self.scene.stage.ask(orders), strict=True):
            parts: Mapping[str, Any] = {}
            if isinstance(answer, Failed):
                course.failure = course.failure or answer.reason
            elif course.failure is None:
                parts = answer["parts"]
                self.logged.add(Logged(metrics=answer.get("metrics", {}), extras=answer.get("extras", {})))
            played.append(course.played(parts))
        return played


def _cut(completion: Completion, limit: int) -> Completion:
    """The completion as a lower limit had given it."""
    if len(completion.ids) <= limit:
        return completion
    kept = None if completion.kept is None else completion.kept[:limit]
    return replace(
        completion,
        ids=completion.ids[:limit],
        sampler_logprobs=completion.sampler_logprobs[:limit],
        kept=kept,
        finish_reason="length",
    )


def without_end(ids: Sequence[int], end_ids: Collection[int]) -> list[int]:
    """The ids up to the stop and padding ids at their end."""
    kept = list(ids)
    while kept and kept[-1] in end_ids:
        kept.pop()
    return kept


def said_in(completion: Completion) -> Iterator[tuple[int, ...]]:
    """The tokens of each of the policy's turns."""
    return (completion.ids[turn.start : turn.stop] for turn in completion.turns)


def episode_metrics(groups: Sequence[Group], prefix: str = "") -> dict[str, float | None]:
    """Turns, calls of tools, failures and what environments gave; empty without an environment."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    episodes = [rollout.episode for rollout in rollouts if rollout.episode is not None]
    if not episodes:
        return {}
    calls = sum(episode.num_calls for episode in episodes)
    metrics: dict[str, float | None] = {
        "episodes/mean_turns": sum(episode.num_turns for episode in episodes) / len(episodes),
        "episodes/failed": sum(episode.failure is not None for episode in episodes),
        "tools/call_frequency": calls / len(episodes),
        "tools/failure_frequency": sum(e.num_failed_calls for e in episodes) / calls if calls else None,
    }
    for name in sorted({name for episode in episodes for name in episode.parts}):
        values = [episode.parts[name] for episode in episodes if name in episode.parts]
        metrics[f"episodes/{name}/mean"] = fsum(values) / len(values)
    return {f"{prefix}{name}": value for name, value in metrics.items()}
