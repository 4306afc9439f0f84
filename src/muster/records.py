"""The records that flow through a run, one type per stage; frozen and free of torch.

    Sample -> (engine) Completion -> (grade) Rollout -> Group -> (collate) Batch

A type per stage means that "not graded yet" can't be represented. Groups have ids; nothing is
matched by text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Literal, NamedTuple

Message = Mapping[str, object]
"""One chat message: `role`, `content`, and whatever else the chat template reads."""

FinishReason = Literal["stop", "length"]
"""`stop`: a stop token or stop string was seen; `length`: the limit was reached without one."""


class StreamKey(NamedTuple):
    """Names the random stream of a prompt; with the index in the group, that of one rollout.

    Every draw comes from a generator seeded by its key, so one rollout can be sampled again
    without replaying what came before it.
    """

    seed: int
    step: int
    slot: int
    """Which of the step's prompts."""
    attempt: int
    """0 at first; counts up where dynamic sampling draws the slot again."""

    @property
    def group_id(self) -> str:
        """Id of the prompt's group, unique in its run."""
        return f"{self.step}-{self.slot}-{self.attempt}"


class Branch(NamedTuple):
    """Which rollout of a group goes on, and in which turn: the rest of its random stream's name."""

    member: int
    """Which of the group's rollouts, from 0."""
    turn: int
    """From 1: the first turn, 0, is the prompt's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A row of the data: the prompt and what the grader needs."""

    id: str
    """Unique in its data set: the row's number counted from 0, as text."""
    messages: tuple[Message, ...] = ()
    """The prompt as chat messages; empty for a raw prompt."""
    text: str | None = None
    """The prompt as raw text, for base models; None for a chat prompt."""
    columns: Mapping[str, object] = field(default_factory=dict)
    """All other columns of the row, handed to the rewards by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The token ids the model is given, with the key of its random stream."""

    ids: tuple[int, ...]
    key: StreamKey
    branch: Branch | None = None
    """Where one rollout of several turns goes on; None for a prompt that a group shares."""

    @property
    def stream(self) -> tuple[int, ...]:
        """The name of its random stream, which the index in the group completes."""
        return (*self.key, *(self.branch or ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What an engine sampled for one prompt."""

    ids: tuple[int, ...]
    """Token ids, the stop token included where one was sampled."""
    sampler_logprobs: tuple[float, ...]
    """Log-probability of each id under the sampler, in nats, at the sampling temperature."""
    finish_reason: FinishReason
    version: int
    """Version of the policy that sampled it."""
    kept: tuple[tuple[int, ...], ...] | None = None
    """Per token the ids that top-k, top-p and min-p left to choose from; None without them."""
    emitted: tuple[bool, ...] | None = None
    """Per token whether the policy emitted it, not the chat template or an environment; None: all of them."""

    def __post_init__(self) -> None:
        """Refuses lists whose lengths differ: ids, logprobs, kept sets and who emitted are one sequence."""
        lengths = {len(self.ids), len(self.sampler_logprobs)}
        lengths |= {len(values) for values in (self.kept, self.emitted) if values is not None}
        if len(lengths) != 1:
            raise AssertionError(f"ids, logprobs, kept sets and emitted have lengths {sorted(lengths)}")

    @property
    def is_truncated(self) -> bool:
        """The limit was reached and no stop was seen."""
        return self.finish_reason == "length"

    @property
    def num_emitted(self) -> int:
        """How many of its tokens the policy emitted: what counts as its length."""
        return len(self.ids) if self.emitted is None else sum(self.emitted)

    @property
    def turns(self) -> tuple[range, ...]:
        """Where the policy's own tokens are, turn by turn; one range of all where it emitted all."""
        if self.emitted is None:
            return (range(len(self.ids)),)
        edges = [False, *self.emitted, False]
        steps = [place for place in range(len(edges) - 1) if edges[place] != edges[place + 1]]
        return tuple(range(*pair) for pair in zip(steps[::2], steps[1::2], strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """What went back and forth in a rollout with an environment, and what that made of it."""

    messages: tuple[Message, ...]
    """After the prompt: what the policy said, a message per turn, and what it was answered."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the environment gave, by name; empty where it gave nothing."""
    failure: str | None = None
    """Why the environment failed: the rollout leaves its group."""
    num_calls: int = 0
    """Calls of tools."""
    num_failed_calls: int = 0
    """Those among them that were answered with an error."""

    @property
    def reward(self) -> float | None:
        """The sum of the parts; None where there are none."""
        return fsum(self.parts.values()) if self.parts and self.failure is None else None

    @property
    def num_turns(self) -> int:
        """How often the policy spoke."""
        return sum(message.get("role") == "assistant" for message in self.messages)


@dataclass(frozen=True, kw_only=True, slots=True)
class GradingRequest:
    """One completion as the rewards see it."""

    sample: Sample
    prompt_text: str
    """The prompt as it was rendered for the model."""
    completion: Completion
    text: str
    """The completion without end-of-turn and padding tokens; other special tokens are kept."""
    plain_text: str
    """The completion without any special token: what TRL hands to its reward functions."""
    episode: Episode | None = None
    """What went back and forth; None where no environment took part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A number, an abstention (`value` None, no failures), or a failure."""

    value: float | None
    """The weighted sum of the parts that gave a number; None if none of weight did, or if any failed."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """What each reward gave, unweighted, by name; None where it abstained or failed."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why a reward failed, by its name."""

    @property
    def is_failure(self) -> bool:
        """Some reward failed: the rollout leaves its group, it is never scored 0."""
        return bool(self.failures)

    @property
    def is_abstention(self) -> bool:
        """Every reward declined to judge: the rollout leaves its group."""
        return self.value is None and not self.failures


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """A completion and its score."""

    completion: Completion
    text: str
    """The completion as the rewards saw it."""
    score: Score
    episode: Episode | None = None
    """What went back and forth; None where no environment took part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The rollouts of one prompt."""

    id: str
    """The `group_id` of its prompt's key."""
    sample: Sample
    prompt: Prompt
    prompt_text: str
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """What training computed for one rollout; per-token tuples have the completion's length.

    Empty tuples mean "not computed": no reference without a KL term, no new logprobs for a
    rollout that was not sent through the update.
    """

    reward: float | None
    """The number that entered the group's statistics: the score with overlong and KL penalties."""
    advantage: float
    mask: tuple[bool, ...]
    """True where a token counts in the loss."""
    old_logprobs: tuple[float, ...] = ()
    ref_logprobs: tuple[float, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Of the last training forward in which the rollout took part."""
    entropy: tuple[float, ...] = ()
    """Of the policy's next-token distribution, in nats, from the same forward."""


Extras = Mapping[str, Sequence[object]]
"""Values that rewards noted beside the score (TRL's `log_extra`), by column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalReport:
    """Held-out results at one step."""

    step: int
    groups: tuple[Group, ...]
    metrics: Mapping[str, float | None]
    """`eval_reward` and its interval, pass@k, lengths."""
    extras: Extras = field(default_factory=dict)
    """What rewards noted about the held-out completions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """All there is to know about one step; whoever drives the loop decides what to keep."""

    step: int
    """Counted from 1."""
    groups: tuple[Group, ...]
    traces: tuple[tuple[Trace, ...], ...]
    """In the order of `groups` and their rollouts."""
    metrics: Mapping[str, float | None]
    """By TRL's names where it has one; None where there is no number."""
    timings: Mapping[str, float]
    """Seconds by phase."""
    warnings: tuple[str, ...] = ()
    """What a person should read: a skipped update, a resampling bound reached."""
    eval: EvalReport | None = None
    extras: Extras = field(default_factory=dict)
    """What rewards noted about the completions that were sampled."""
