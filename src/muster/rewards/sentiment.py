"""A reward for tone: how probable a classifier finds the wanted class, or what a lexicon says."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal

from annotated_types import Gt, MinLen

from muster.errors import RewardError

MAX_CHARACTERS = 20_000
"""The lexicon reads so many characters, from the start."""
_MAX_WORDS = 2_000


def sentiment(
    prompts: Sequence[object],
    completions: Sequence[object],
    *,
    model: Annotated[str, MinLen(1)] | None = None,
    label: str | None = None,
    output: Literal["probability", "logit"] = "probability",
    over: Literal["completion", "sample"] = "completion",
    batch_size: Annotated[int, Gt(0)] = 16,
    device: str | None = None,
) -> list[float]:
    """How much each completion is of the wanted tone.

    With a model (a folder, or the id of one on the hub): the probability of the class `label`, or its
    logit; without a label, the class named positive, or the only one there is. Without a model the
    vaderSentiment lexicon (extra `sentiment`), for English: its compound score from -1 to 1, turned
    around for the label `negative`. With `over = "sample"` the prompt is read too. A blank text says
    nothing and scores 0.

    It runs in the process of the run, beside the model that is trained.
    """
    texts = [_text(item) for item in completions]
    if over == "sample":
        texts = [_joined(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    if model is None:
        return [_lexicon_score(text, label) for text in texts]
    from muster.rewards.classifier import class_scores

    return class_scores(texts, model=model, label=label, output=output, batch_size=batch_size, device=device)


# A model is loaded once, and wants the device that the run has.
sentiment.__dict__["runs_in_main"] = True


def _text(item: object) -> str:
    """A text as it is, or the content of the last message of a chat."""
    if isinstance(item, str):
        return item
    last = item[-1] if isinstance(item, Sequence) and item else None
    content = last.get("content") if isinstance(last, Mapping) else None
    return content if isinstance(content, str) else ""


def _joined(prompt: object, text: str) -> str:
    """A raw prompt and its continuation, or the last message of a chat and the reply on a line of its own."""
    return f"{_text(prompt)}{'' if isinstance(prompt, str) else chr(10)}{text}"


def _lexicon_score(text: str, label: str | None) -> float:
    if label not in (None, "positive", "negative"):
        raise ValueError(f"the lexicon knows the labels positive and negative, not {label!r}; set `model`")
    # Longer words are in no lexicon, and what it costs grows with the square of the number of words.
    words = [word for word in text[:MAX_CHARACTERS].split()[:_MAX_WORDS] if len(word) <= 40]
    score = _lexicon()(" ".join(words))
    return -score if label == "negative" else score


@lru_cache(maxsize=1)
def _lexicon() -> Callable[[str], float]:
    """What gives a text's compound score."""
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError as error:
        raise RewardError(
            f"The reward 'sentiment' needs a `model` or a lexicon: {error}. Install muster-rl[sentiment]."
        ) from error
    analyzer = SentimentIntensityAnalyzer()
    return lambda text: float(analyzer.polarity_scores(text)["compound"])
