"""A real model for the pictures: opened from any place, and its next-token distributions.

Axes: N positions, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from muster import pretrained
from muster.batch import Row, collate
from muster.config import load
from muster.errors import ConfigError
from muster.policy import Policy
from muster.records import Completion
from muster.using import load_policy, locate, run_around

MAX_TEXT_TOKENS = 128
"""Of a text whose every distribution is held at once, over the whole vocabulary and in float64."""


def open_policy(path: str) -> Policy:
    """The policy of a run, a checkpoint, an adapter or any model."""
    run = run_around(Path(path))
    place = locate(Path(path), load(run / "config.toml") if run else None)
    tokenizer = pretrained.load_tokenizer(place.model.path)
    return load_policy(place, tokenizer, seed=0)


def ids_of(policy: Policy, text: str) -> tuple[int, ...]:
    """The text's tokens; ConfigError for none, or for more than fit."""
    ids = tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
    if not 1 <= len(ids) <= MAX_TEXT_TOKENS:
        raise ConfigError(
            f"--text has {len(ids)} tokens for this model; allowed: 1 to {MAX_TEXT_TOKENS}. "
            f"Give a {'longer' if not ids else 'shorter'} text."
        )
    return ids


def next_logits(policy: Policy, ids: Sequence[int]) -> Float[Tensor, "N V"]:
    """Logits of the token that follows each of these, in float64, by the path that training takes."""
    # The last token of a completion predicts nothing in training, so one is put behind the text.
    follower = Completion(
        ids=(*ids[1:], ids[0]),
        sampler_logprobs=(0.0,) * len(ids),
        finish_reason="length",
        version=0,
    )
    batch = collate([tuple(ids[:1])], [Row(0, follower, 0.0)])
    with torch.no_grad():
        return policy.logits(policy.states(batch)).double().cpu()


def token_text(policy: Policy, token: int) -> str:
    """What the token stands for, with its blanks seen."""
    return repr(str(policy.tokenizer.decode([token])))
