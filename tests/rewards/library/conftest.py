from collections.abc import Callable

import pytest

from muster.records import Completion, GradingRequest, Sample, Score
from muster.rewards import grade, load_rewards


def request(text: str, num_tokens: int, columns: dict[str, object]) -> GradingRequest:
    return GradingRequest(
        sample=Sample(id="0", messages=({"role": "user", "content": "Please answer. "},), columns=columns),
        prompt_text="<s>Please answer. ",
        completion=Completion(
            ids=(7,) * num_tokens, sampler_logprobs=(0.0,) * num_tokens, finish_reason="stop", version=0
        ),
        text=text,
        plain_text=text,
    )


@pytest.fixture
def score_of() -> Callable[..., Score]:
    """The score that a built-in reward gives to a completion, with options and columns as a run has them."""

    def graded(
        name: str, text: str, options: dict[str, object] | None = None, tokens: int = 5, **columns: object
    ) -> Score:
        rewards = load_rewards(name, options={name: options or {}})
        [score] = grade([request(text, tokens, columns)], rewards)
        return score

    return graded
