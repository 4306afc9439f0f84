"""What a sequence-classification model says of texts; the one module of the rewards that imports torch."""

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from muster.errors import RewardError
from muster.nearest import did_you_mean
from muster.quiet import quiet

_MAX_TOKENS = 512
_CHARACTERS_PER_TOKEN = 16
"""Text beyond so many characters per token that is read isn't tokenized."""


class _Classifier(NamedTuple):
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    labels: tuple[str, ...]
    max_tokens: int


def class_scores(
    texts: Sequence[str],
    *,
    model: str,
    label: str | None,
    output: Literal["probability", "logit"],
    batch_size: int,
    device: str | None,
) -> list[float]:
    """The probability or the logit of the class for each text, computed in batches.

    A model with one class only (a reward model, a regression) has no probabilities beside each other: its
    one is the sigmoid of the logit. A text is read up to the model's longest input, at most 512 tokens.
    """
    classifier = _loaded(model, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    index = _class_index(classifier.labels, label, model)
    tokens = _token_ids(classifier, texts)
    # Texts of like length share a batch: less is padded. One without tokens says nothing, and scores 0.
    order = sorted((row for row, ids in enumerate(tokens) if ids), key=lambda row: len(tokens[row]))
    scores = [0.0] * len(texts)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        logits = _logits(classifier, [tokens[row] for row in rows])
        for row, score in zip(rows, _of_class(logits, index, output).tolist(), strict=True):
            scores[row] = score
    return scores


@lru_cache(maxsize=2)
def _loaded(model: str, device: str) -> _Classifier:
    """The model, frozen and without dropout; safetensors only, and no code of its own."""
    place = os.path.expanduser(model)
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            loaded, info = AutoModelForSequenceClassification.from_pretrained(
                place,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError) as error:
        raise RewardError(
            f"reward.options.sentiment.model: {model!r} can't be loaded as a sequence-classification model: "
            f"{error}"
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise RewardError(
            f"reward.options.sentiment.model: the weights of {model!r} lack {missing[0]}, which would be "
            "random: the model was not trained to classify. Name one that was."
        )
    loaded.requires_grad_(False).eval().to(torch.device(device))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    loaded.config.pad_token_id = tokenizer.pad_token_id
    labels = loaded.config.id2label or {}
    positions = getattr(loaded.config, "max_position_embeddings", None) or _MAX_TOKENS
    return _Classifier(
        tokenizer=tokenizer,
        model=loaded,
        labels=tuple(str(labels[index]) for index in sorted(labels)),
        max_tokens=min(_MAX_TOKENS, positions, tokenizer.model_max_length),
    )


def _class_index(labels: Sequence[str], label: str | None, model: str) -> int:
    """Which class is wanted: by its name in any case, by its number, or the positive one."""
    if label is None and len(labels) == 1:
        return 0
    wanted = "positive" if label is None else label
    names = [name.casefold() for name in labels]
    if wanted.casefold() in names:
        return names.index(wanted.casefold())
    if wanted.isascii() and wanted.isdigit() and int(wanted) < len(labels):
        return int(wanted)
    raise RewardError(
        f"reward.options.sentiment.label is {label!r}, but the classes of {model!r} are "
        f"{', '.join(labels)}.{did_you_mean(wanted, labels)} Name one of them, or its number from 0."
    )


def _token_ids(classifier: _Classifier, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text that the model reads; none for white space."""
    # A lone surrogate is no text that a tokenizer could take.
    clean = [
        text.strip()[: classifier.max_tokens * _CHARACTERS_PER_TOKEN].encode("utf-8", "replace").decode()
        for text in texts
    ]
    limits = {"truncation": True, "max_length": classifier.max_tokens}
    return [classifier.tokenizer(text, **limits)["input_ids"] if text else [] for text in clean]


def _logits(classifier: _Classifier, tokens: list[list[int]]) -> Tensor:
    """[texts, classes], on the CPU."""
    inputs = classifier.tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
    with torch.inference_mode():
        return classifier.model(**inputs.to(classifier.model.device)).logits.float().cpu()


def _of_class(logits: Tensor, index: int, output: Literal["probability", "logit"]) -> Tensor:
    if output == "logit":
        return logits[:, index]
    return logits.sigmoid()[:, 0] if logits.shape[1] == 1 else logits.softmax(dim=1)[:, index]
