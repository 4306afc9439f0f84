import functools
import re
from typing import Any

import pytest

from muster.errors import ConfigError, DataError, RewardError
from muster.records import Completion, GradingRequest, Sample
from muster.rewards import InlineGrader, check_columns, count_levels, describe, grade, load_rewards
from muster.rewards.naming import function_name


def request(
    text: str = "hi", *, raw: bool = False, plain: str | None = None, **columns: object
) -> GradingRequest:
    messages = () if raw else ({"role": "system", "content": "s"}, {"role": "user", "content": "question"})
    return GradingRequest(
        sample=Sample(id="7", messages=messages, text="question" if raw else None, columns=columns),
        prompt_text="<s>question",
        completion=Completion(ids=(5, 6), sampler_logprobs=(-1.0, -2.0), finish_reason="stop", version=0),
        text=text,
        plain_text=text if plain is None else plain,
    )


def values(function: Any, *requests: GradingRequest, **options: object) -> list[float | None]:
    rewards = load_rewards(function, options={"f": options} if options else None)
    scores = grade(requests, rewards)
    assert not any(score.failures for score in scores), scores
    return [score.value for score in scores]


def test_a_reward_per_completion_gets_what_its_signature_names():
    def f(completion: str, answer: int) -> float:
        return answer + len(completion)

    assert values(f, request("abc", answer=4, other=1), request("", answer=1)) == [7.0, 1.0]


def test_a_reward_with_kwargs_gets_all_columns():
    seen: list[dict[str, object]] = []
    values(lambda completion, **columns: seen.append(columns), request(a=1, b="x"))
    assert seen == [{"a": 1, "b": "x"}]


def test_a_reward_can_ask_for_all_there_is_about_a_completion():
    seen: list[object] = []

    def f(
        completion,
        prompt,
        prompt_text,
        messages,
        plain_text,
        completion_ids,
        finish_reason,
        sample_id,
        columns,
    ):
        seen.extend([completion, prompt, prompt_text, messages, plain_text])
        seen.extend([completion_ids, finish_reason, sample_id, columns])

    values(f, request("<ans>7</ans>", plain="7", a=1))
    assert seen == [
        "<ans>7</ans>",
        "question",
        "<s>question",
        [{"role": "system", "content": "s"}, {"role": "user", "content": "question"}],
        "7",
        [5, 6],
        "stop",
        "7",
        {"a": 1},
    ]


def test_a_column_that_is_there_beats_a_default_and_one_that_is_not_leaves_it():
    def f(completion: str, bonus: float = 10.0) -> float:
        return bonus

    assert values(f, request(bonus=1.0), request()) == [1.0, 10.0]


def test_a_positional_only_reward_is_called_by_position():
    def f(completion, answer, /, *, scale=2):
        return scale * answer

    assert values(f, request(answer=3)) == [6.0]


def test_a_trl_reward_gets_lists_and_chat_messages():
    seen: dict[str, object] = {}

    def f(prompts, completions, completion_ids, answer, **kwargs):
        seen.update(prompts=prompts, completions=completions, completion_ids=completion_ids, answer=answer)
        seen["kwargs"] = sorted(kwargs)
        return [1.0, 2.0]

    assert values(f, request("<x>a", plain="a", answer=1), request("b", answer=2, extra=0)) == [1.0, 2.0]
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "question"}]
    assert seen == {
        "prompts": [chat, chat],
        "completions": [
            [{"role": "assistant", "content": "a"}],
            [{"role": "assistant", "content": "b"}],
        ],
        "completion_ids": [[5, 6], [5, 6]],
        "answer": [1, 2],
        "kwargs": ["extra", "log_extra", "log_metric", "trainer_state"],
    }


def test_a_trl_reward_on_raw_prompts_gets_strings():
    def f(completions, prompts):
        assert prompts == ["question"]
        return [float(len(text)) for text in completions]

    assert values(f, request("abcd", raw=True)) == [4.0]


def test_only_kwargs_of_a_trl_reward_hold_the_prompts_too():
    assert values(lambda completions, **kwargs: [len(kwargs["prompts"])], request()) == [1.0]


def compute_score(data_source, solution_str, ground_truth, extra_info=None, method="strict"):
    assert (data_source, method, extra_info) == ("openai/gsm8k", "strict", {"split": "train"})
    return {"score": float(solution_str == ground_truth), "length": len(solution_str), "pred": solution_str}


@pytest.mark.parametrize(
    "truth",
    [{"reward_model": {"style": "rule", "ground_truth": "72"}}, {"ground_truth": "72"}, {"answer": "72"}],
)
def test_a_verl_reward_is_called_as_verl_does_and_its_other_numbers_are_logged(truth):
    columns = {"data_source": "openai/gsm8k", "extra_info": {"split": "train"}, "method": "none", **truth}
    rewards = load_rewards(compute_score)
    check_columns(rewards, columns, "a.parquet")
    grader = InlineGrader(rewards)
    scores = grader.grade([request("<s>72", plain="72", **columns), request("71", **columns)])
    assert [score.parts for score in scores] == [{"compute_score": 1.0}, {"compute_score": 0.0}]
    assert grader.take_logged().metrics == {"compute_score/length": [2.0, 2.0]}


def test_a_verl_reward_that_takes_less_or_all_gets_what_it_takes():
    assert values(lambda solution_str, ground_truth: len(ground_truth), request(ground_truth="abc")) == [3.0]
    assert values(lambda solution_str, **all_of_it: len(all_of_it), request(answer="abc", other=1)) == [3.0]


def test_a_verl_reward_without_a_score_is_a_failure():
    [score] = grade([request()], load_rewards(lambda solution_str: {"acc": 1.0}))
    assert score.failures == {"lambda": "gave a dictionary without 'score' (acc)"}


def test_a_verl_reward_needs_a_ground_truth_in_the_data():
    with pytest.raises(DataError, match="needs the column 'ground_truth'"):
        check_columns(load_rewards(compute_score), ["data_source", "extra_info"], "a.parquet")


def test_a_trl_reward_may_name_only_the_ids_or_the_prompts():
    assert values(lambda completion_ids, **kwargs: [len(ids) for ids in completion_ids], request()) == [2.0]
    assert values(lambda prompts: [1.0 for _ in prompts], request()) == [1.0]


def overridden(function: Any, convention: Any, *requests: GradingRequest) -> list[float | None]:
    [reward] = load_rewards(function, conventions={function_name(function): convention})
    check_columns([reward], requests[0].sample.columns, "data")
    scores = grade(requests, [reward])
    assert not any(score.failures for score in scores), scores
    return [score.value for score in scores]


def test_a_convention_can_be_given_where_the_names_do_not_tell():
    asked = request("abc", answer="abc", completions=5)
    assert overridden(lambda text, gold: float(text == gold), "answer", asked) == [1.0]
    assert overridden(lambda completion, answer: float(completion == answer), "answer", asked) == [1.0]
    assert overridden(lambda text, /, gold, *, scale=2: scale * (text == gold), "answer", asked) == [2.0]
    assert overridden(lambda text: float(len(text)), "completion", asked) == [3.0]
    assert overridden(lambda completion, completions: completions, "completion", asked) == [5.0]
    assert overridden(lambda **kwargs: [len(kwargs["completions"])], "batch", asked) == [1.0]
    assert overridden(lambda **kwargs: len(kwargs["solution_str"]), "verl", asked) == [3.0]


def test_a_convention_that_a_function_cannot_follow_is_refused():
    with pytest.raises(RewardError, match="passes completion and answer by position"):
        load_rewards(lambda text: 1.0, conventions={"lambda": "answer"})
    with pytest.raises(ConfigError, match=r"reward\.convention\.other: there is no such reward"):
        load_rewards(lambda completion: 1.0, conventions={"other": "answer"})


def test_what_an_overridden_reward_is_called_with_is_printed():
    [line] = describe(load_rewards(lambda text, gold: 1.0, conventions={"lambda": "answer"}))
    assert line.startswith(
        "lambda (weight 1): called once per completion, by position, with completion as text"
    )


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda text: 1.0, "asks for no completion (its parameters: text)"),
        (lambda **columns: 1.0, "asks for no completion"),
        (lambda completion, completions: 1.0, "asks for both `completion` and `completions`"),
    ],
)
def test_a_function_that_fits_neither_convention_is_refused(function, says):
    with pytest.raises(RewardError, match=re.escape(says)):
        load_rewards(function)


def test_what_is_no_function_is_refused():
    with pytest.raises(RewardError, match="which is no function"):
        load_rewards([3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="empty"):
        load_rewards([])


class Length:
    def __call__(self, completion: str) -> float:
        return float(len(completion))

    def shorter(self, completion: str) -> float:
        return -float(len(completion))


def exact(completion: str, target: str = "hi") -> float:
    return float(completion == target)


def test_anything_that_can_be_called_has_a_readable_name_of_its_own():
    functions = [
        exact,
        lambda completion: 1.0,
        lambda completion: 2.0,
        functools.partial(exact, target="no"),
        Length(),
        Length().shorter,
    ]
    rewards = load_rewards(functions)
    assert [reward.name for reward in rewards] == [
        "exact",
        "lambda",
        "lambda_2",
        "exact_2",
        "Length",
        "Length.shorter",
    ]
    [score] = grade([request("hi")], rewards)
    assert score.parts == {
        "exact": 1.0,
        "lambda": 1.0,
        "lambda_2": 2.0,
        "exact_2": 0.0,
        "Length": 2.0,
        "Length.shorter": -2.0,
    }
    assert score.value == 4.0


def test_what_a_partial_binds_no_column_undoes():
    assert values(functools.partial(exact, target="hi"), request("hi", target="other")) == [1.0]


def test_a_name_is_safe_in_metrics_and_paths():
    def f(completion):
        return 0.0

    f.__name__ = "../a b\x1b[2J"
    assert load_rewards(f)[0].name == "a_b_2J"


def test_a_function_of_a_file_goes_by_its_own_name(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def close(completion, target=3): return -abs(len(completion) - target)\n"
    )
    [reward] = load_rewards(f"{tmp_path / 'mine.py'}:close", options={"close": {"target": 5}})
    assert reward.name == "close"
    assert grade([request("abc")], [reward])[0].value == -2.0


def test_options_are_bound_and_win_over_columns():
    def f(completion: str, scale: float = 1.0) -> float:
        return scale

    assert values(f, request(scale=9.0), scale=2.0) == [2.0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"char_coutn": {}}, "there is no such reward; in use: char_count. Did you mean 'char_count'?"),
        ({"char_count": {"charakter": ","}}, "it has: character, over. Did you mean 'character'?"),
        ({"char_count": {"completion": ","}}, "reward.options.char_count.completion: is supplied by Muster"),
        ({"char_count": {"over": "prompt"}}, "reward.options.char_count.over is 'prompt': Input should be"),
        ({"char_count": {"character": ""}}, "at least 1 character"),
        ({"char_count": {"character": 3}}, "should be a valid string"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(options, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_rewards("char_count", options=options)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"has: .*code, contains_answer, .*mean 'contains_answer'\?"):
        load_rewards("contain_answer")


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0, 3.0], [1.0, float("nan")]])
def test_wrong_weights_are_refused(weights):
    with pytest.raises(ConfigError, match=r"reward\.weights"):
        load_rewards(["char_count", "json_extraction"], weights)


def test_a_missing_column_is_named_before_anything_is_graded():
    def f(completion, solution, depth=1):
        return 0.0

    rewards = load_rewards(
        ["contains_answer", "json_extraction", f], options={"json_extraction": {"text": "source"}}
    )
    with pytest.raises(DataError) as caught:
        check_columns(rewards, ["answers", "sauce"], "data/a.csv")
    lines = str(caught.value).splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "data/a.csv: reward contains_answer needs the column 'answer'",
        "data/a.csv: reward json_extraction needs the column 'source'",
        "data/a.csv: reward f needs the column 'solution'",
    ]
    assert "found: answers, sauce. Did you mean 'answers'?" in lines[0]
    check_columns(rewards, ["answer", "source", "solution"], "data/a.csv")


def test_the_convention_that_was_chosen_is_printed():
    def batch(completions, **kwargs):
        return [0.0 for _ in completions]

    assert describe(load_rewards([exact, batch], [1.0, 0.5], {"exact": {"target": "x"}})) == [
        "exact (weight 1): called once per completion, with completion; target='x'",
        "batch (weight 0.5): called once per batch, as TRL does, with completion_ids, completions, "
        "log_extra, log_metric, prompts, trainer_state, **columns",
    ]


def test_levels_are_counted_by_reward():
    def f(completion):
        return 0.5 if completion else None

    f.levels = (0, 0.5)  # pyright: ignore[reportFunctionMemberAccess]
    rewards = load_rewards([f, "char_count", "contains_answer"])
    scores = grade([request("a", answer="a"), request("b", answer="a"), request("", answer="a")], rewards)
    assert count_levels(rewards, scores) == {"f": {0.0: 0, 0.5: 2}, "contains_answer": {0.0: 2, 1.0: 1}}


def test_levels_that_are_no_numbers_are_refused():
    def f(completion):
        return 0.0

    f.levels = ("low",)  # pyright: ignore[reportFunctionMemberAccess]
    with pytest.raises(RewardError, match="its levels are"):
        load_rewards(f)
