"""The policy objectives over the ratio, for a token that was good and for one that was bad."""

from collections.abc import Sequence

import torch

from muster.algo.objectives import OBJECTIVES
from muster.explain.variants import (
    OLD_LOGPROB,
    Ends,
    Variant,
    described,
    ends_of,
    loss_and_slope,
    named,
    reads_ratio_alone,
    variants,
)
from muster.pictures import Chart, Curve, Picture, Table

SHOWN = (0.5, 0.79, 1.0, 1.2, 1.25, 1.3, 5.0)
"""Ratios of the table."""
_WIDE = (0.02, 3.5, 0.02)
_NEAR = (0.995, 1.005, 0.00005)
"""From, to and step of the curves' ratios: all of them, and where the ratios of sequences are."""
_SEQUENCE = ("gspo",)
"""Objectives whose clip range is too narrow for the wide chart."""


def explain_clip(recipes: Sequence[str] = ()) -> Picture:
    """The picture for the objectives of these recipes; without any, of all, and the dual clip."""
    shown = variants(recipes)
    ends = {
        variant.name: (ends_of(variant.objective, 1.0), ends_of(variant.objective, -1.0)) for variant in shown
    }
    near = [variant for variant in shown if named(variant.objective, OBJECTIVES) in _SEQUENCE]
    of_ratio = [variant for variant in shown if reads_ratio_alone(variant.objective)]
    return Picture(
        name="clip",
        title="Objective and gradient over the ratio",
        blocks=(
            "The ratio is what the policy says of a token now, over what the policy that sampled it said. "
            "It is 1 where the policy that is updated is the one that sampled; all objectives are the same "
            "there: their gradient is the advantage. They differ once several updates share the rollouts.",
            "Above 0, an advantage pulls the token up, and the ratio grows; below 0 it pushes it down. The "
            "push is what the token's log-probability is multiplied by: 0 is a token that is left alone.",
            *(_chart(shown, advantage, is_push=True) for advantage in (1.0, -1.0)),
            *(_chart(of_ratio, advantage, is_push=False) for advantage in (1.0, -1.0) if of_ratio),
            *(_zoomed(near, advantage) for advantage in (1.0, -1.0) if near),
            _ends_table(shown, ends),
            *(_values(shown, advantage) for advantage in (1.0, -1.0)),
            "A ratio outside the range on the other side of its advantage is not clipped: a good token that "
            "became unlikely is still pulled back up. cap bounds the ratio itself, so that a bad token that "
            "became likely can't push without limit. gspo and vespo read the ratio of the whole completion, "
            "which for the one-token completions drawn here is the token's own. The values of cispo, "
            "vespo and reinforce depend on the token's probability as well, so only their push is drawn; in "
            f"the tables that probability is {_old():.1f} at ratio 1.",
        ),
        numbers={
            "advantage_1": {name: both[0]._asdict() for name, both in ends.items()},
            "advantage_-1": {name: both[1]._asdict() for name, both in ends.items()},
            "recipes": {variant.name: list(variant.recipes) for variant in shown},
        },
    )  # fmt: skip


def _old() -> float:
    return float(torch.tensor(OLD_LOGPROB).exp())


def _chart(shown: Sequence[Variant], advantage: float, *, is_push: bool) -> Chart:
    what = "push on the log-probability" if is_push else "objective (minus the loss)"
    return Chart(
        title=f"{what}, advantage {advantage:+.0f}",
        x_label="ratio",
        y_label=what,
        curves=tuple(_curve(variant, _WIDE, advantage, is_push=is_push) for variant in shown),
    )


def _zoomed(shown: Sequence[Variant], advantage: float) -> Chart:
    return Chart(
        title=f"push on the log-probability near ratio 1, advantage {advantage:+.0f}",
        x_label="ratio of the sequence",
        y_label="push on the log-probability",
        curves=tuple(_curve(variant, _NEAR, advantage, is_push=True) for variant in shown),
    )


def _curve(variant: Variant, span: tuple[float, float, float], advantage: float, *, is_push: bool) -> Curve:
    first, last, step = span
    ratios = torch.arange(round((last - first) / step) + 1, dtype=torch.float64) * step + first
    loss, slope = loss_and_slope(variant.objective, ratios, advantage)
    return Curve(
        name=variant.name,
        x=tuple(round(ratio, 6) for ratio in ratios.tolist()),
        y=tuple((0.0 - (slope if is_push else loss)).tolist()),
    )


def _ends_table(shown: Sequence[Variant], ends: dict[str, tuple[Ends, Ends]]) -> Table:
    return Table(
        title="where the gradient ends",
        columns=("objective", "advantage +1", "advantage -1", "recipes"),
        rows=tuple(
            (
                described(variant.objective, OBJECTIVES),
                *(_said(found) for found in ends[variant.name]),
                ", ".join(variant.recipes) or "an option of clip",
            )
            for variant in shown
        ),
    )


def _said(ends: Ends) -> str:
    parts = [f"below {ends.low:g}"] if ends.low is not None else []
    parts += [f"above {ends.high:g}"] if ends.high is not None else []
    return " and ".join(parts) or "nowhere"


def _values(shown: Sequence[Variant], advantage: float) -> Table:
    ratios = torch.tensor(SHOWN, dtype=torch.float64)
    rows = []
    for variant in shown:
        loss, slope = loss_and_slope(variant.objective, ratios, advantage)
        rows.append((variant.name, "loss", *(loss + 0.0).tolist()))
        rows.append(("", "d/dlogp", *(slope + 0.0).tolist()))
    return Table(
        title=f"loss and its derivative by the log-probability, advantage {advantage:+.0f}",
        columns=("objective", "", *(f"ratio {ratio:g}" for ratio in SHOWN)),
        rows=tuple(rows),
    )
