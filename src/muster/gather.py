"""Prompts to groups: sample, decode, grade."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from muster.clock import Clock
from muster.dist import exchange, share, world_size
from muster.engines.base import Engine, Sampling
from muster.episodes import Detokenizer, Play, Scene, Start, said_in, without_end
from muster.records import (
    Completion,
    Episode,
    Extras,
    GradingRequest,
    Group,
    Message,
    Prompt,
    Rollout,
    Sample,
    Score,
    StreamKey,
)
from muster.redaction import redacted
from muster.rewards import Grader, Logged
from muster.rewards.pool.wire import as_rollout, dump_rollout, dumps, loads, sendable
from muster.stats import mean_of


class Item(NamedTuple):
    """A sample with its prompt as token ids and as text."""

    sample: Sample
    ids: tuple[int, ...]
    text: str
    opening: tuple[Message, ...] = ()
    """The messages that its environment opens with; empty without one."""


class Sampled(NamedTuple):
    """A rollout before it is graded."""

    completion: Completion
    episode: Episode | None = None


SampledOf = Callable[[slice], list[list[Sampled]]]
"""What was sampled for a part of the items."""


class Noted(NamedTuple):
    """What rewards noted on the side."""

    metrics: dict[str, float | None]
    """The mean of each number, by name."""
    extras: Extras

    def beside(self, metrics: Mapping[str, float | None], prefix: str = "") -> dict[str, float | None]:
        """The metrics and the noted ones; under a name that is taken already, as `logged/NAME`."""
        taken = {"step", *metrics}
        noted = {f"{prefix}{name}": value for name, value in self.metrics.items()}
        return {
            **metrics,
            **{f"logged/{name}" if name in taken else name: value for name, value in noted.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Collector:
    """What turns prompts into graded groups."""

    engine: Engine
    grader: Grader
    tokenizer: Detokenizer
    num_steps: int
    """Of the run; rewards in TRL's convention may ask for it."""
    end_ids: frozenset[int]
    """Stop and padding ids: cut from the end of the text that rewards see."""
    scene: Scene | None = None
    """What rollouts of several turns are played on; None where a completion is all there is."""
    _logged: Logged = field(default_factory=Logged, repr=False)
    """What rewards noted since it was last taken, on all ranks."""
    _played: Logged = field(default_factory=Logged, repr=False)
    """What those of environments noted, on this rank."""

    def collect(
        self,
        items: Sequence[Item],
        keys: Sequence[StreamKey],
        sampling: Sampling,
        clock: Clock,
        *,
        step: int | None = None,
        sampled: Sequence[Sequence[Completion]] | None = None,
    ) -> list[Group]:
        """A graded group per item, in order; every rank samples and grades its share of them.

        `step` is the run's that rewards are told of; without it, the one that the keys name. `sampled`
        are completions that are there already, on every rank.
        """
        prompts = [Prompt(ids=item.ids, key=key) for item, key in zip(items, keys, strict=True)]
        told = keys[0].step if step is None else step

        def sampled_of(part: slice) -> list[list[Sampled]]:
            if sampled is None:
                return self._sampled(items[part], prompts[part], sampling, clock, told)
            return [[Sampled(one) for one in group] for group in sampled[part]]

        rollouts = self._shared(items, sampled_of, clock, told)
        return [
            Group(
                id=prompt.key.group_id,
                sample=item.sample,
                prompt=prompt,
                prompt_text=item.text,
                rollouts=members,
            )
            for item, prompt, members in zip(items, prompts, rollouts, strict=True)
        ]

    def _shared(
        self, items: Sequence[Item], sampled_of: SampledOf, clock: Clock, step: int
    ) -> list[tuple[Rollout, ...]]:
        """Those of all items, of which each rank samples and grades its share."""
        if world_size() == 1:
            return self._graded(items, sampled_of(slice(None)), clock, step)
        mine = slice(share(len(items)).start, share(len(items)).stop)

        def work() -> str:
            # A rank that has nothing to sample asks for nothing, too: the others may wait for it there.
            sampled = sampled_of(mine)
            rollouts = self._graded(items[mine], sampled, clock, step) if sampled else []
            return _dump(rollouts, self._take_logged())

        everyone = [_load(str(received)) for received in exchange(work)]
        for _, logged in everyone:
            self._logged.add(logged)
        return [members for rollouts, _ in everyone for members in rollouts]

    def _graded(
        self, items: Sequence[Item], sampled: Sequence[Sequence[Sampled]], clock: Clock, step: int
    ) -> list[tuple[Rollout, ...]]:
        """The rollouts of each item with their scores."""
        requests = [
            self._request(item, one) for item, members in zip(items, sampled, strict=True) for one in members
        ]
        with clock.phase("score"):
            scores = self.grader.grade(requests, step=step, num_steps=self.num_steps)
        graded = iter(zip(requests, scores, strict=True))
        return [tuple(_rollout(*next(graded)) for _ in members) for members in sampled]

    def _sampled(
        self, items: Sequence[Item], prompts: Sequence[Prompt], sampling: Sampling, clock: Clock, step: int
    ) -> list[list[Sampled]]:
        """`group_size` rollouts of each prompt, with an environment or without."""
        if self.scene is None:
            with clock.phase("sample"):
                return [[Sampled(one) for one in group] for group in self.engine.generate(prompts, sampling)]
        play = Play(
            scene=self.scene,
            engine=self.engine,
            tokenizer=self.tokenizer,
            end_ids=self.end_ids,
            sampling=sampling,
            clock=clock,
            step=step,
            num_steps=self.num_steps,
            logged=self._played,
        )
        starts = [
            Start(item.sample, item.opening, prompt) for item, prompt in zip(items, prompts, strict=True)
        ]
        return [[Sampled(*one) for one in group] for group in play.groups(starts)]

    def take_noted(self) -> Noted:
        """What rewards noted on the side since the last call."""
        logged = Logged()
        logged.add(self._logged)
        logged.add(self._take_logged())
        self._logged.clear()
        means = {name: mean_of(values) for name, values in logged.metrics.items()}
        return Noted(means, dict(logged.extras))

    def _take_logged(self) -> Logged:
        """What rewards noted on this rank since the last call, those of environments first."""
        logged = Logged()
        logged.add(self._played)
        logged.add(self.grader.take_logged())
        self._played.clear()
        return logged

    def _request(self, item: Item, sampled: Sampled) -> GradingRequest:
        turns = [without_end(ids, self.end_ids) for ids in said_in(sampled.completion)]
        plain = [str(self.tokenizer.decode(ids, skip_special_tokens=True)) for ids in turns]
        return GradingRequest(
            sample=item.sample,
            prompt_text=item.text,
            completion=sampled.completion,
            text="\n".join(str(self.tokenizer.decode(ids)) for ids in turns),
            plain_text="\n".join(plain),
            episode=sampled.episode,
        )


def _dump(rollouts: Sequence[Sequence[Rollout]], logged: Logged) -> str:
    extras = {column: list(map(sendable, values)) for column, values in logged.extras.items()}
    plain = [list(map(dump_rollout, members)) for members in rollouts]
    return dumps({"rollouts": plain, "metrics": logged.metrics, "extras": extras})


def _load(line: str) -> tuple[list[tuple[Rollout, ...]], Logged]:
    read = loads(line)
    rollouts = [tuple(map(as_rollout, members)) for members in read["rollouts"]]
    return rollouts, Logged(metrics=read["metrics"], extras=read["extras"])


def _rollout(request: GradingRequest, score: Score) -> Rollout:
    """The rollout with its score; a failure, whatever rewards say, where its environment failed."""
    episode = request.episode
    if episode is not None and episode.failure is not None:
        failures = {**score.failures, "environment": redacted(episode.failure)}
        score = replace(score, value=None, failures=failures)
    return Rollout(completion=request.completion, text=request.text, score=score, episode=episode)
