"""Rewards that others wrote run as they are: those that TRL ships, and the one of a practical guide."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.records import Completion, GradingRequest, Sample
from muster.rewards import PoolGrader, load_rewards

RIGHT = r"<think>a third</think>My answer is \boxed{\frac{1}{3}}"
WRONG = r"<think>half<think>My answer is \boxed{\frac{1}{2}}"


def chats(*texts: str, num_ids: int = 2, **columns: object) -> list[GradingRequest]:
    return [
        GradingRequest(
            sample=Sample(id=str(i), messages=({"role": "user", "content": "question"},), columns=columns),
            prompt_text="question",
            completion=Completion(
                ids=tuple(range(num_ids)), sampler_logprobs=(0.0,) * num_ids, finish_reason="stop", version=0
            ),
            text=text,
            plain_text=text,
        )
        for i, text in enumerate(texts)
    ]


@pytest.fixture
def scored() -> Iterator[Callable[..., list[float | None]]]:
    """Grades in workers, where nothing may fail."""
    graders: list[PoolGrader] = []

    def grade(use: Any, asked: list[GradingRequest]) -> list[float | None]:
        graders.append(PoolGrader(load_rewards(use), workers=1, time_limit_s=60.0))
        scores = graders[-1].grade(asked, step=1, num_steps=10)
        assert [score.failures for score in scores if score.failures] == []
        return [score.value for score in scores]

    yield grade
    for grader in graders:
        grader.close()


def test_trl_think_format_reward_runs_as_it_is(scored):
    assert scored("trl.rewards:think_format_reward", chats(RIGHT, WRONG)) == [1.0, 0.0]


def test_trl_accuracy_rewards_run_as_they_are(scored):
    asked = chats(RIGHT, WRONG, solution=r"\frac{1}{3}")
    assert scored("trl.rewards:accuracy_reward", asked) == [1.0, 0.0]
    assert scored("trl.rewards:accuracy_reward", chats(RIGHT, solution="")) == [None]
    asked = chats(RIGHT, WRONG, solution=r"\frac{1}{3}")
    assert scored("trl.rewards:reasoning_accuracy_reward", asked) == [1.0, 0.0]


def test_trl_cosine_scaled_reward_runs_as_it_is(scored):
    from trl.rewards.accuracy_rewards import get_cosine_scaled_reward

    asked = chats(RIGHT, WRONG, num_ids=50, solution=r"\frac{1}{3}")
    assert scored(get_cosine_scaled_reward(max_len=100), asked) == [0.75, -0.75]


def test_trl_rewards_on_token_ids_run_as_they_are(scored):
    from trl.rewards.other_rewards import get_repetition_penalty_reward, get_soft_overlong_punishment

    punish = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert scored(punish, chats("a", num_ids=90)) == [-0.5]
    assert scored(punish, [*chats("a", num_ids=80), *chats("b", num_ids=101)]) == [0.0, -1.0]
    assert scored(get_repetition_penalty_reward(ngram_size=2), chats("a", num_ids=9)) == [0.0]


GUIDE = '''
import json

counts = {}


def pairs_of(text):
    found = []
    json.loads(text, object_pairs_hook=lambda pairs: found.append(pairs) or dict(pairs))
    return found[-1] if found else None


def extraction_reward(prompts, completions, **kwargs):
    """A list of scores for a list of conversations, graded by the last message of the assistant."""
    scores = []
    for prompt, completion in zip(prompts, completions):
        answer = completion[-1]["content"].strip()
        source = prompt[-1]["content"].lower()
        try:
            value = json.loads(answer)
        except json.JSONDecodeError:
            scores.append(0.0)
            continue
        if not isinstance(value, dict):
            scores.append(0.2)
        elif len(value) <= 1:
            scores.append(0.3)
        elif len(value) < len(pairs_of(answer)):
            scores.append(0.5)
        else:
            every = all(str(item).lower() in source for item in value.values())
            scores.append(1.0 if every else 0.7)
    for score in scores:
        counts[score] = counts.get(score, 0) + 1
    print(counts)
    return scores
'''


def test_the_reward_of_the_practical_guide_runs_as_it_is(scored, tmp_path: Path):
    path = tmp_path / "guide.py"
    path.write_text(GUIDE)
    answers = {
        "no JSON": 0.0,
        "[1]": 0.2,
        '{"a": "question"}': 0.3,
        '{"a": "question", "a": 1, "b": "question"}': 0.5,
        '{"a": "question", "b": "absent"}': 0.7,
        '{"a": "question", "b": "QUESTION"}': 1.0,
    }
    assert scored(f"{path}:extraction_reward", chats(*answers)) == list(answers.values())
