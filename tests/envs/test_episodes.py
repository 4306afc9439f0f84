"""Rollouts of several turns on an engine that follows a script: every token, and whose it is."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from muster.clock import Clock
from muster.engines.base import Sampling
from muster.engines.fake import FakeEngine
from muster.engines.sampler import uniforms
from muster.envs import Glue, InlineStage
from muster.episodes import OTHER_OPENING, Play, Played, Scene, Start, episode_metrics
from muster.records import Branch, Completion, Message, Prompt, Sample, StreamKey
from tiny import ids_of, tiny_tokenizer

END = 2
KEY = StreamKey(seed=3, step=1, slot=0, attempt=0)
OPENING: tuple[Message, ...] = ({"role": "user", "content": "p"},)
BEGUN = "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n"


def joint(reply: str) -> str:
    """What stands between two turns, the end of the turn that was emitted left out."""
    return f"\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n"


class Table:
    """Plays one group by a script from turns to replies, and keeps what the engine was asked."""

    def __init__(
        self,
        script: Callable[[Prompt], Sequence[str]],
        environment: str = "toy_environments:Echo",
        *,
        max_tokens: int = 512,
        opening: tuple[Message, ...] = OPENING,
    ) -> None:
        tokenizer = tiny_tokenizer()
        self.engine = FakeEngine(script, num_vocab=259, encode=ids_of)
        self.play = Play(
            scene=Scene(
                stage=InlineStage(environment), glue=Glue(tokenizer, {}, OPENING), max_tokens=max_tokens
            ),
            engine=self.engine,
            tokenizer=tokenizer,
            end_ids=frozenset({END}),
            sampling=Sampling(group_size=2, max_tokens=64, stop_ids=frozenset({END})),
            clock=Clock(),
        )
        sample = Sample(id="0", messages=OPENING)
        self.start = Start(sample, opening, Prompt(ids=ids_of(BEGUN), key=KEY))

    def group(self) -> list[Played]:
        [group] = self.play.groups([self.start])
        return group


def by_turn(*turns: str) -> Callable[[Prompt], list[str]]:
    """The same replies in both rollouts."""
    return lambda prompt: [turns[prompt.branch.turn if prompt.branch else 0]]


def own(completion: Completion) -> list[tuple[int, ...]]:
    return [completion.ids[turn.start : turn.stop] for turn in completion.turns]


def test_what_was_emitted_stays_as_it_is_and_what_is_between_is_masked():
    first, second = Table(by_turn("one", "two", "three")).group()
    said = ["one", "two", "three"]
    between = [joint("You said one"), joint("You said two")]
    text = f"{said[0]}<|im_end|>{between[0]}{said[1]}<|im_end|>{between[1]}{said[2]}<|im_end|>"
    assert first == second
    assert first.completion.ids == ids_of(text)
    assert own(first.completion) == [(*ids_of(word), END) for word in said]
    assert first.completion.emitted is not None
    places = zip(first.completion.emitted, first.completion.sampler_logprobs, strict=True)
    assert all((value < 0) == emitted for emitted, value in places)
    assert first.completion.num_emitted == sum(map(len, said)) + 3
    assert first.completion.finish_reason == "stop"
    assert [(m["role"], m["content"]) for m in first.episode.messages] == [
        ("assistant", "one"),
        ("user", "You said one"),
        ("assistant", "two"),
        ("user", "You said two"),
        ("assistant", "three"),
    ]
    assert (first.episode.reward, first.episode.num_turns, first.episode.failure) == (3.0, 3, None)


def test_tokens_that_text_would_not_give_back_are_kept():  # B31
    # "<|im_end|>" letter by letter is no end of a turn, and encoded again it would be one.
    spelled = tuple(ids_of(letter)[0] for letter in "<|im_end|>")
    table = Table(lambda prompt: [(*spelled, END)])  # pyright: ignore[reportArgumentType]
    played = table.group()[0]
    assert own(played.completion) == [(*spelled, END)] * 3
    asked = table.engine.calls[1][0][0].ids
    assert asked == (
        *table.start.prompt.ids,
        *played.completion.ids[: len(asked) - len(table.start.prompt.ids)],
    )


def test_the_group_shares_its_first_turn_and_goes_on_in_streams_of_its_own():
    table = Table(by_turn("one", "two", "three"))
    table.group()
    (opening, first), (turn_1, second), (turn_2, _) = table.engine.calls
    assert [prompt.branch for prompt in opening] == [None]
    assert (first.group_size, second.group_size) == (2, 1)
    assert [prompt.branch for prompt in turn_1] == [Branch(0, 1), Branch(1, 1)]
    assert [prompt.branch for prompt in turn_2] == [Branch(0, 2), Branch(1, 2)]
    names = [(opening[0].stream, 0), (opening[0].stream, 1), *((p.stream, 0) for p in (*turn_1, *turn_2))]
    draws = [tuple(uniforms(stream, index, 4)) for stream, index in names]
    assert len(set(draws)) == 6


def test_rollouts_end_at_turns_of_their_own():
    def script(prompt: Prompt) -> list[str]:
        if prompt.branch is None:
            return ["raise", "fine"]
        return ["later"]

    failed, other = Table(script, "toy_environments:Bad").group()
    assert failed.episode.failure is not None
    assert failed.episode.failure.startswith("raised ValueError: no such move")
    assert failed.episode.parts == {}
    assert own(failed.completion) == [(*ids_of("raise"), END)]
    assert (other.episode.failure, other.episode.num_turns) == (None, 4)


def test_an_episode_ends_at_its_last_turn_and_a_turn_at_its_own_limit():
    table = Table(by_turn("ab", "cd", "ef"), "toy_environments:Patient")
    played = table.group()[0]
    assert [call[1].max_tokens for call in table.engine.calls] == [3, 3, 3]
    assert (played.episode.num_turns, played.episode.reward) == (3, 3.0)
    assert played.completion.finish_reason == "stop"
    cut = Table(by_turn("ab", "cdef", "gh"), "toy_environments:Patient").group()[0]
    assert own(cut.completion) == [(*ids_of("ab"), END), ids_of("cde")]
    assert cut.completion.finish_reason == "length"
    assert cut.episode.reward == 2.0, "a turn that was cut is heard, too"


def test_the_budget_is_of_what_the_policy_emits_in_all_turns():
    assert Table(by_turn("four", "four", "four")).group()[0].completion.num_emitted == 15
    short = Table(by_turn("four", "four", "four"))
    short.play = replace(short.play, sampling=replace(short.play.sampling, max_tokens=7))
    played = short.group()[0]
    assert [call[1].max_tokens for call in short.engine.calls] == [7, 2]
    assert own(played.completion) == [(*ids_of("four"), END), ids_of("fo")]
    assert played.completion.finish_reason == "length"
    spent = replace(short.play, sampling=replace(short.play.sampling, max_tokens=5))
    [[ended, _]] = spent.groups([short.start])
    assert own(ended.completion) == [(*ids_of("four"), END)]
    assert ended.completion.finish_reason == "length", "it was answered, and had no token left to go on"
    assert ended.episode.num_turns == 1


def test_a_turn_of_the_longest_is_cut_where_its_own_limit_is():
    def script(prompt: Prompt) -> list[str]:
        return ["a", "abcd"] if prompt.branch is None else ["xyzuv"]

    table = Table(script)
    table.play = replace(table.play, sampling=replace(table.play.sampling, max_tokens=8))
    one, other = table.group()
    assert table.engine.calls[1][1].max_tokens == 6
    assert own(one.completion)[1] == (*ids_of("xyzuv"), END)
    assert own(other.completion)[1] == ids_of("xyz"), "5 of 8 tokens were used"


def test_a_reply_that_leaves_no_room_in_the_context_ends_the_rollout_as_cut():
    needed = len(ids_of(BEGUN)) + 4 + len(ids_of(joint("You said one"))) + 1
    fits = Table(by_turn("one", "two", "three"), max_tokens=needed).group()[0]
    assert fits.episode.num_turns == 2
    assert own(fits.completion)[1] == ids_of("t")
    full = Table(by_turn("one", "two", "three"), max_tokens=needed - 1).group()[0]
    assert full.episode.num_turns == 1
    assert full.completion.ids == (*ids_of("one"), END)
    assert (fits.completion.finish_reason, full.completion.finish_reason) == ("length", "length")


def test_an_opening_that_is_another_than_the_prompts_costs_the_rollout():
    played = Table(by_turn("one", "two", "three"), "toy_environments:Fickle").group()[0]
    assert played.episode.failure == OTHER_OPENING
    assert played.episode.num_turns == 1
    expected = ({"role": "user", "content": "Begin with p"},)
    opened = Table(by_turn("one", "two", "three"), "toy_environments:Opener", opening=expected).group()[0]
    assert (opened.episode.failure, opened.episode.num_turns) == (None, 3)


def test_calls_of_tools_are_counted_and_their_results_are_turns():
    good = '<tool_call>{"name": "add", "arguments": {"first": 2}}</tool_call>'
    bad = '<tool_call>{"name": "add"}</tool_call>'
    table = Table(by_turn(good, bad, "3", "4"), "toy_environments:Lazy")
    table.play = replace(table.play, sampling=replace(table.play.sampling, max_tokens=256))
    played = table.group()[0]
    assert [m["role"] for m in played.episode.messages[:4]] == ["assistant", "tool", "assistant", "tool"]
    assert played.episode.messages[1]["content"] == "3"
    assert (played.episode.num_calls, played.episode.num_failed_calls) == (2, 1)


def test_what_a_lower_limit_cuts_is_what_it_would_have_sampled():
    assert tuple(uniforms((1, 2, 3), 0, 5)) == tuple(uniforms((1, 2, 3), 0, 9)[:5])


def test_lists_of_one_length_are_demanded():  # B16
    with pytest.raises(AssertionError, match=r"lengths \[2, 3\]"):
        Completion(
            ids=(1, 2, 3),
            sampler_logprobs=(-1.0, 0.0, -1.0),
            finish_reason="stop",
            version=0,
            emitted=(True, False),
        )


def test_without_an_environment_there_are_no_metrics_of_episodes():
    assert episode_metrics([]) == {}
