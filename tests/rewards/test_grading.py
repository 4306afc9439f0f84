import asyncio
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from muster.errors import RewardError
from muster.records import Completion, GradingRequest, Sample, Score
from muster.rewards import InlineGrader, grade, load_rewards, refuse_failures
from muster.rewards.numbers import MAX_REWARD


def requests(*texts: str, **columns: object) -> list[GradingRequest]:
    return [
        GradingRequest(
            sample=Sample(id=str(i), messages=({"role": "user", "content": "q"},), columns=columns),
            prompt_text="q",
            completion=Completion(ids=(1,), sampler_logprobs=(0.0,), finish_reason="stop", version=0),
            text=text,
            plain_text=text,
        )
        for i, text in enumerate(texts)
    ]


class ZeroDim:
    """What a 0-d tensor looks like from outside."""

    shape = ()

    def item(self) -> float:
        return 0.25


class OneDim(ZeroDim):
    shape = (1,)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("given", "number"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (-0.5, -0.5),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(2), 2.0),
        (numpy.bool_(True), 1.0),
        (numpy.array(0.5), 0.5),
        (ZeroDim(), 0.25),
        (MAX_REWARD, 1e15),
    ],
)
def test_what_is_a_number_counts_as_one(given, number):
    [score] = grade(requests("a"), load_rewards(lambda completion: given))
    assert (score.value, score.failures) == (number, {})
    [score] = grade(requests("a"), load_rewards(lambda completions: [given]))
    assert score.value == number


async def _never_awaited() -> float:
    return 1.0


BAD: list[tuple[Any, str]] = [
    (lambda: float("nan"), "gave NaN; give None to abstain"),
    (lambda: numpy.float64("nan"), "gave NaN"),
    (lambda: float("inf"), "gave a number beyond"),
    (lambda: -float("inf"), "gave a number beyond"),
    (lambda: 10**400, "gave a number beyond"),
    (lambda: "1.0", "gave str '1.0' where a number or None was expected"),
    (lambda: [1.0], "gave list [1.0]"),
    (dict, "gave dict {}"),
    (lambda: 1j, "gave complex 1j"),
    (lambda: OneDim(), "gave OneDim"),
    (lambda: numpy.array([1.0, 2.0]), "gave ndarray"),
    (lambda: Unprintable(), "gave Unprintable <"),
    (lambda: object, "gave type"),
    (lambda: 1 / 0, "raised ZeroDivisionError: division by zero (test_grading.py, line "),
    (lambda: exit(3), "raised SystemExit: 3"),
    (lambda: [][0], "raised IndexError"),
]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("bad", "says"), BAD)
def test_a_bad_reward_is_a_failure_of_its_sample_alone(bad, says, place):
    texts = ["a", "b", "c"]

    def f(completion):
        return bad() if completion == texts[place] else 1.0

    scores = grade(requests(*texts), load_rewards(f))
    failed = scores.pop(place)
    assert (failed.value, failed.parts, failed.is_failure) == (None, {"f": None}, True)
    assert says in failed.failures["f"]
    assert [score.value for score in scores] == [1.0, 1.0]


@pytest.mark.parametrize(("bad", "says"), [entry for entry in BAD if entry[1].startswith("gave")])
def test_a_bad_element_of_a_batch_is_a_failure_of_its_sample_alone(bad, says):
    scores = grade(requests("a", "b", "c"), load_rewards(lambda completions: [1.0, bad(), None]))
    assert [score.value for score in scores] == [1.0, None, None]
    assert says in scores[1].failures["lambda"]
    assert [score.is_abstention for score in scores] == [False, False, True]


def test_a_coroutine_among_the_values_is_a_failure_and_is_closed():
    scores = grade(requests("a", "b"), load_rewards(lambda completions: [_never_awaited(), 1.0]))
    assert "gave a coroutine where a number was expected" in scores[0].failures["lambda"]
    assert scores[1].value == 1.0


def _three() -> Iterator[float]:
    yield from (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([1.0], "gave 1 values for 3 completions; one for each is expected"),
        ([], "gave 0 values for 3"),
        ([1, 2], "gave 2 values for 3"),
        ([1, 2, 3, 4], "gave 4 values for 3"),
        (_three(), "gave generator"),
        (1.0, "gave float 1.0 where a list of numbers was expected"),
        ("abc", "gave str 'abc'"),
        ({1: 1, 2: 2, 3: 3}, "gave dict"),
        (None, "gave NoneType None"),
        (numpy.array(1.0), "gave float 1.0"),
    ],
)
def test_a_batch_of_the_wrong_length_fails_whole_with_both_lengths(returned, says):
    scores = grade(requests("a", "b", "c"), load_rewards(lambda completions: returned))
    assert all(score.value is None and says in score.failures["lambda"] for score in scores)


@pytest.mark.parametrize("returned", [[1, 2, 3], (1, 2, 3), numpy.array([1, 2, 3])])
def test_a_batch_of_the_right_length_passes_as_list_tuple_or_array(returned):
    scores = grade(requests("a", "b", "c"), load_rewards(lambda completions: returned))
    assert [score.value for score in scores] == [1.0, 2.0, 3.0]


def test_a_batch_that_raises_fails_whole():
    def f(completions):
        raise KeyError("x" * 10_000)

    scores = grade(requests("a", "b"), load_rewards(f))
    assert all(
        "raised KeyError" in score.failures["f"] and len(score.failures["f"]) < 500 for score in scores
    )


def test_none_abstains_and_the_other_rewards_still_count():
    def maybe(completion):
        return None if completion == "a" else 1.0

    def length(completion):
        return 0.5

    alone = grade(requests("a", "b"), load_rewards(maybe))
    assert [score.value for score in alone] == [None, 1.0]
    assert [score.is_abstention for score in alone] == [True, False]
    both = grade(requests("a", "b"), load_rewards([maybe, length], weights=[2.0, 1.0]))
    assert [score.value for score in both] == [0.5, 2.5]
    assert both[0].parts == {"maybe": None, "length": 0.5}


def test_the_value_is_the_weighted_sum_and_weight_zero_only_logs():
    rewards = load_rewards([lambda completion: 0.25, lambda completion: -1.0], weights=[2.0, 0.0])
    [score] = grade(requests("a"), rewards)
    assert score.value == 0.5
    assert score.parts == {"lambda": 0.25, "lambda_2": -1.0}


def test_one_failed_reward_makes_no_number_of_the_others():
    def bad(completion):
        raise ValueError("no")

    [score] = grade(requests("a"), load_rewards([bad, lambda completion: 1.0]))
    assert score.value is None
    assert score.parts == {"bad": None, "lambda": 1.0}
    assert list(score.failures) == ["bad"]


def test_async_rewards_run_at_once_in_both_conventions():
    running = 0
    most = 0

    async def each(completion):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 1 / 0 if completion == "bad" else len(completion)

    async def batch(completions):
        await asyncio.sleep(0)
        return [2.0] * len(completions)

    scores = grade(requests("a", "bad", "ccc"), load_rewards([each, batch]))
    assert [score.value for score in scores] == [3.0, None, 5.0]
    assert "ZeroDivisionError" in scores[1].failures["each"]
    assert most == 3


def test_async_rewards_work_where_a_loop_is_already_running():
    async def f(completion):
        await asyncio.sleep(0)
        return 1.0

    async def notebook() -> list[Score]:
        return grade(requests("a"), load_rewards(f))

    assert asyncio.run(notebook())[0].value == 1.0


def test_a_reward_gets_copies():
    def vandal(completion, messages, completion_ids, columns, tags, options):
        messages[0]["content"] = "changed"
        completion_ids.clear()
        columns["tags"].append("x")
        tags.append("y")
        options.append(1)
        return len(tags) + len(options)

    def trl_vandal(prompts, completions, completion_ids, tags):
        prompts[0][0]["content"] = completions[0][0]["content"] = "changed"
        completion_ids[0].clear()
        tags[0].append("z")
        return [0.0] * len(prompts)

    given = requests("a", "b", tags=["t"])
    rewards = load_rewards([vandal, trl_vandal], options={"vandal": {"options": []}})
    assert [score.value for score in grade(given, rewards)] == [3.0, 3.0]
    assert [score.value for score in grade(given, rewards)] == [3.0, 3.0]
    assert given == requests("a", "b", tags=["t"])


def test_rewards_can_note_numbers_and_columns_on_the_side():
    def f(completions, log_metric, log_extra, trainer_state):
        log_metric("seen", len(completions))
        log_extra("parsed", [text[0]["content"].upper() for text in completions])
        return [trainer_state.global_step / trainer_state.max_steps] * len(completions)

    grader = InlineGrader(load_rewards(f))
    assert [score.value for score in grader.grade(requests("a", "b"), step=3, num_steps=12)] == [0.25, 0.25]
    logged = grader.take_logged()
    assert (logged.metrics, logged.extras) == ({"seen": [2.0]}, {"parsed": ["A", "B"]})
    assert grader.take_logged().metrics == {}
    grader.close()


def test_ctrl_c_is_not_a_failure():
    def f(completion):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade(requests("a"), load_rewards(f))


def test_nothing_to_grade_is_no_error():
    assert grade([], load_rewards([lambda completion: 1.0, lambda completions: []])) == []


def test_too_many_failures_stop_with_the_most_common_reasons():
    failed = Score(value=None, failures={"f": "raised ValueError: no"})
    fine = Score(value=1.0)
    refuse_failures([failed, fine], 0.5)
    refuse_failures([], 0.0)
    with pytest.raises(RewardError, match=r"2 of 3 completions could not be scored.*0\.5") as caught:
        refuse_failures([failed, failed, fine], 0.5)
    assert "2 times: f raised ValueError: no" in str(caught.value)
