"""What each token of short and long completions counts in the loss.

Axes: B completions, T positions.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from muster.algo.tokens import Totals
from muster.algo.weights import WEIGHTS, Weights
from muster.errors import ConfigError
from muster.pictures import Chart, Curve, Picture, Table

LENGTHS = (16, 64, 256)
LIMIT = 256
MAX_TOKENS = 100_000
"""Longest completion that is drawn."""
_CURVE_POINTS = 40


def explain_weights(lengths: Sequence[int] = LENGTHS, limit: int = LIMIT) -> Picture:
    """The picture for completions of these lengths and a limit of so many tokens."""
    _refuse_odd(lengths, limit)
    mask = mask_of(lengths)
    totals = Totals(tokens=sum(lengths), sequences=len(lengths), limit=limit)
    weighed = {name: weigh(mask, totals).double() for name, weigh in WEIGHTS.items()}
    # Every token of a completion weighs the same, so its first one speaks for it.
    per_token = {name: weights[:, 0].tolist() for name, weights in weighed.items()}
    shares = {name: (w.sum(dim=1) / w.sum()).tolist() for name, w in weighed.items()}
    sums = {name: float(w.sum()) for name, w in weighed.items()}
    columns = ("weights", *(f"{length} tokens" for length in lengths))
    return Picture(
        name="weights",
        title="What each token counts in the loss",
        blocks=(
            "The loss of an update is the sum over all tokens of each token's loss times its weight. "
            f"Here the update has {len(lengths)} completions of {_listed(lengths)} tokens, and the limit "
            f"is {limit} tokens. A weight already holds every division that the formula makes.",
            Table(
                title="weight of one token of a completion of ...",
                columns=(*columns, "all weights together"),
                rows=tuple((name, *per_token[name], sums[name]) for name in weighed),
            ),
            Table(
                title="share of the update that a completion of ... has",
                columns=columns,
                rows=tuple((name, *shares[name]) for name in weighed),
            ),
            _by_length(lengths, limit),
            "by_sequence: each completion has the same share, so one token of a short completion counts "
            "more than one of a long one; a long failure is pushed down gently at each of its tokens, and "
            "failures tend to grow. by_token: each token counts the same, so long completions have the "
            "larger share. by_limit: each token counts the same, and the same in every update of as many "
            "completions, however long they are. by_sum: a completion is one action; loss and gradient grow "
            "with its length.",
            "The weights differ in size by orders of magnitude. AdamW divides by the size of the gradient "
            "and hides most of that; optim.max_grad_norm does not.",
        ),
        numbers={"lengths": list(lengths), "limit": limit, "token": per_token, "share": shares, "sum": sums},
    )


def mask_of(lengths: Sequence[int]) -> Bool[Tensor, "B T"]:
    """True where a completion of this length has a token."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def _by_length(lengths: Sequence[int], limit: int) -> Chart:
    """One completion grows while the others stay: what one of its tokens weighs."""
    others = list(lengths[1:])
    grown = sorted({round(limit ** (at / _CURVE_POINTS)) for at in range(_CURVE_POINTS + 1)})

    def weight(weigh: Weights, length: int) -> float:
        totals = Totals(tokens=length + sum(others), sequences=1 + len(others), limit=limit)
        return float(weigh(mask_of([length]), totals)[0, 0])

    return Chart(
        title="weight of one token as its completion grows",
        x_label="tokens of the completion",
        y_label="weight of one of its tokens",
        curves=tuple(
            Curve(
                name=name,
                x=tuple(map(float, grown)),
                y=tuple(weight(weigh, length) for length in grown),
            )
            for name, weigh in WEIGHTS.items()
        ),
        is_log=True,
    )


def _listed(values: Sequence[int]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def _refuse_odd(lengths: Sequence[int], limit: int) -> None:
    if not lengths or min(lengths) < 1 or max(lengths) > MAX_TOKENS:
        raise ConfigError(
            f"--lengths is {','.join(map(str, lengths))!r}; allowed: whole numbers from 1 to {MAX_TOKENS}, "
            "with commas between them, as in 16,64,256."
        )
    if limit > MAX_TOKENS:
        raise ConfigError(f"--limit is {limit}; allowed: up to {MAX_TOKENS}.")
    if limit < max(lengths):
        raise ConfigError(
            f"--limit is {limit}, below the longest completion, {max(lengths)}. Raise it, or shorten that."
        )
