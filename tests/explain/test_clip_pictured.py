"""The picture of the objectives: its curves are those of MATH's table, and its bounds the objectives' own."""

import pytest
import torch

from muster.algo.objectives import clip
from muster.algo.recipes import RECIPES
from muster.errors import ConfigError
from muster.explain.clip import explain_clip
from muster.explain.variants import ends_of, loss_and_slope, variants
from muster.pictures import Chart, Table
from pictured import numbers_of

RATIOS = torch.tensor([0.5, 0.79, 1.0, 1.2, 1.25, 1.3, 5.0], dtype=torch.float64)
GOOD = [(-0.5, -0.5), (-0.79, -0.79), (-1, -1), (-1.2, -1.2), (-1.25, -1.25), (-1.28, 0), (-1.28, 0)]
BAD = [(0.8, 0), (0.8, 0), (1, 1), (1.2, 1.2), (1.25, 1.25), (1.3, 1.3), (3, 0)]
"""Loss and derivative of clip with low 0.2, high 0.28 and cap 3, worked by hand."""


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, GOOD), (-1.0, BAD)])
def test_loss_and_slope_are_the_objectives_own(advantage, expected):
    loss, slope = loss_and_slope(lambda tokens: clip(tokens, low=0.2, high=0.28, cap=3.0), RATIOS, advantage)
    assert loss.tolist() == pytest.approx([value for value, _ in expected])
    assert slope.tolist() == pytest.approx([value for _, value in expected])


@pytest.mark.parametrize(
    ("recipe", "good", "bad"),
    [
        ("grpo", (None, 1.2), (0.8, None)),
        ("dapo", (None, 1.28), (0.8, None)),
        ("gspo", (None, 1.0004), (0.9997, None)),
        ("luspo", (None, 1.0025), (0.998, None)),
        ("cispo", (None, None), (None, None)),
        ("rloo", (None, None), (None, None)),
    ],
)
def test_a_gradient_ends_where_the_recipe_says(recipe, good, bad):
    objective = RECIPES[recipe].objective
    assert ends_of(objective, 1.0) == pytest.approx(good, abs=1e-8)
    assert ends_of(objective, -1.0) == pytest.approx(bad, abs=1e-8)


def test_a_dual_clip_ends_on_both_sides():
    picture = explain_clip()
    assert numbers_of(picture)["advantage_-1"]["clip 0.2/0.2/3"] == pytest.approx({"low": 0.8, "high": 3.0})


def test_every_recipe_is_drawn_once():
    drawn = [recipe for variant in variants() for recipe in variant.recipes]
    assert sorted(drawn) == sorted(RECIPES)
    assert [variant.name for variant in variants(["dr_grpo", "grpo", "dapo"])] == [
        "clip 0.2/0.2",
        "clip 0.2/0.28",
    ]


def test_curves_pass_through_the_table():
    picture = explain_clip(["dapo"])
    push = next(block for block in picture.blocks if isinstance(block, Chart) and "+1" in block.title)
    at = dict(zip(push.curves[0].x, push.curves[0].y, strict=True))
    assert at[0.5] == pytest.approx(0.5)
    assert at[1.24] == pytest.approx(1.24)
    assert at[1.3] == 0
    table = next(block for block in picture.blocks if isinstance(block, Table) and "ends" in block.title)
    assert table.rows == (("clip (low 0.2, high 0.28)", "above 1.28", "below 0.8", "dapo"),)


def test_an_unknown_recipe_gives_the_nearest():
    with pytest.raises(ConfigError, match=r"--recipe is 'dapp'.* Did you mean 'dapo'\?"):
        explain_clip(["dapp"])
