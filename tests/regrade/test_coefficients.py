"""Per-token coefficients against numbers worked by hand, and against differences of the loss."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from muster.algo.gates import top_entropy
from muster.algo.kl import k3
from muster.algo.objectives import gspo
from muster.algo.recipes import CISPO, DAPO, DR_GRPO, GRPO, GSPO, RECIPES, Recipe, loss
from muster.algo.tokens import Tokens, Totals
from muster.judge import Judge
from muster.records import Group, Trace
from muster.regrade.coefficients import Side, coefficients_of, gradient, judged
from muster.runstate import Plan
from muster.update import Objective
from toy_run import completion_of, group_of

SMOOTH = [name for name in RECIPES if name not in ("cispo", "vespo")]
"""Recipes whose loss has no weight that is a constant by decree: differences see all of it."""


def side(recipe: Recipe, *, limit: int = 8, kl_coef: float = 0.0, minibatches: int = 1) -> Side:
    return Side(
        judge=Judge(
            advantage=recipe.advantage,
            combine=lambda parts, weights, advantage: advantage((parts * weights[:, None, None]).sum(0)),
            weights={"r": 1.0},
        ),
        objective=Objective(recipe=recipe, temperature=1.0, kl_coef=kl_coef),
        plan=Plan(seed=0, num_steps=1, prompts_per_step=1, minibatches=minibatches),
        limit=limit,
    )


def trace(log_ratios: list[float], *, has_logprobs: bool = True) -> Trace:
    """A rollout whose old logprobs are -1, as `completion_of` has the sampler's."""
    old = (-1.0,) * len(log_ratios)
    lists = {
        "old_logprobs": old,
        "logprobs": tuple(a + b for a, b in zip(old, log_ratios, strict=True)),
        "entropy": tuple(float(place) for place in range(len(log_ratios))),
    }
    return Trace(reward=None, advantage=0.0, mask=(True,) * len(old), **(lists if has_logprobs else {}))


def pair(lengths: tuple[int, int] = (2, 4)) -> Group:
    """Two completions that scored 1 and 0."""
    return group_of([1.0, 0.0], completions=[completion_of(range(5, 5 + length)) for length in lengths])


def of(recipe: Recipe, group: Group, ratios: list[list[float]], **how: bool):
    """The rows of coefficients, without what is beyond a completion's end."""
    traces = [[trace(one, **how) for one in ratios]]
    verdict = judged(side(recipe), [group], traces)
    found = coefficients_of(side(recipe), 1, [group], traces, verdict)
    return found, [row[: len(one)].tolist() for row, one in zip(found.values, ratios, strict=True)]


def test_at_ratio_one_a_coefficient_is_minus_the_advantage_times_the_weight():
    """Rewards 1 and 0 of 2 and 4 tokens: N1's advantages times N3's weights (limit 8)."""
    still = [[0.0] * 2, [0.0] * 4]
    # zscore: 0.5 / (sqrt(0.5) + 1e-4) = 0.707007; 1 / (2 * 2) and 1 / (2 * 4)
    _, (short, long) = of(GRPO, pair(), still)
    assert short == pytest.approx([-0.1767517] * 2, abs=1e-7)
    assert long == pytest.approx([0.0883758] * 4, abs=1e-7)
    # center: 0.5; 1 / (2 * 8)
    _, (short, long) = of(DR_GRPO, pair(), still)
    assert short == pytest.approx([-0.03125] * 2)
    assert long == pytest.approx([0.03125] * 4)
    # zscore; 1 / 6
    _, (short, long) = of(DAPO, pair(), still)
    assert short == pytest.approx([-0.1178345] * 2, abs=1e-7)
    assert long == pytest.approx([0.1178345] * 4, abs=1e-7)


def test_a_clipped_token_has_no_coefficient_and_the_others_carry_their_ratio():
    """N4: ratios 1.25 and 1.3 at A > 0, 0.79 and 1.3 at A < 0; low 0.2, high 0.28 of DAPO."""
    log = [torch.tensor(ratio).log().item() for ratio in (1.25, 1.3, 0.79, 1.3)]
    found, (good, bad) = of(DAPO, pair((2, 2)), [log[:2], log[2:]])
    assert good == pytest.approx([-0.707007 * 1.25 / 4, 0.0], abs=1e-6)
    assert bad == pytest.approx([0.0, 0.707007 * 1.3 / 4], abs=1e-6)
    assert (found.clipped_low, found.clipped_high, found.tokens) == (1, 1, 4)


def test_gspo_gives_every_token_of_a_completion_the_ratio_of_the_sequence():
    """N6: log-ratios .1, -.2, .3: s = 1.068939, -s / 3 per token with A = 1; its own range clips it."""
    group, ratios = pair((3, 1)), [[0.1, -0.2, 0.3], [0.0]]
    wide = Recipe(name="wide", objective=partial(gspo, low=0.2, high=0.2))
    _, (good, _) = of(wide, group, ratios)
    assert good == pytest.approx([-0.356313 * 0.707007 / 2] * 3, abs=1e-6)
    found, (good, bad) = of(GSPO, group, ratios)
    assert good == [0.0] * 3
    assert bad == pytest.approx([0.707007 / 2], abs=1e-6)
    assert found.clipped_high == 3


def test_cispo_keeps_the_gradient_of_a_token_beyond_its_cap():
    """N7: -min(r, 5) A / tokens: exp(2) is cut to 5, and no coefficient is 0."""
    _, (good, bad) = of(CISPO, pair((1, 1)), [[2.0], [0.0]])
    assert good == pytest.approx([-5 * 0.707007 / 2], abs=1e-6)
    assert bad == pytest.approx([0.707007 / 2], abs=1e-6)


def random_tokens() -> Tokens:
    generator = torch.Generator().manual_seed(5)

    def draw(scale: float) -> torch.Tensor:
        return scale * torch.randn(3, 4, generator=generator, dtype=torch.float64)

    old = -2 + draw(0.3)
    return Tokens(
        logprobs=old + draw(0.02),
        old_logprobs=old,
        sampler_logprobs=old + draw(0.05),
        ref_logprobs=old + draw(0.4),
        entropy=draw(1.0).abs(),
        advantages=torch.tensor([1.5, -0.5, -1.0], dtype=torch.float64),
        mask=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool(),
    )


@pytest.mark.parametrize("name", SMOOTH)
def test_a_coefficient_is_what_the_loss_changes_by(name: str):
    tokens, totals = random_tokens(), Totals(tokens=11, sequences=4, limit=8)
    recipe = replace(RECIPES[name], kl=k3)
    found = gradient(tokens, Objective(recipe=recipe, temperature=1.0, kl_coef=0.3), totals)
    step = 1e-6
    for place in tokens.mask.nonzero().tolist():
        moved = []
        for sign in (1, -1):
            logprobs = tokens.logprobs.clone()
            logprobs[tuple(place)] += sign * step
            moved.append(loss(replace(tokens, logprobs=logprobs), recipe, totals, kl_coef=0.3).item())
        assert found[tuple(place)].item() == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-8)
    assert (found[~tokens.mask] == 0).all()


def test_what_was_not_recorded_is_unknown_and_never_a_number():
    group = pair((2, 2))
    traces = [[trace([0.0, 0.0]), trace([0.0, 0.0], has_logprobs=False)]]
    recipe = side(GRPO)
    found = coefficients_of(recipe, 1, [group], traces, judged(recipe, [group], traces))
    assert found.values[0].isfinite().all()
    assert found.values[1].isnan().all()
    assert found.tokens == 2
    # One number is found over all tokens of an update: without some of them it isn't known.
    gated = side(Recipe(name="gated", gate=top_entropy(share=0.5)))
    found = coefficients_of(gated, 1, [group], traces, judged(gated, [group], traces))
    assert found.values.isnan().all()


def test_the_totals_are_those_of_the_update_a_rollout_was_in():
    """Two minibatches of one rollout: each has all the weight of its update, 1 / (1 * its tokens)."""
    group, traces = pair(), [[trace([0.0] * 2), trace([0.0] * 4)]]
    halves = side(GRPO, minibatches=2)
    found = coefficients_of(halves, 1, [group], traces, judged(halves, [group], traces))
    assert found.values[0, :2].tolist() == pytest.approx([-0.707007 / 2] * 2, abs=1e-6)
    assert found.values[1].tolist() == pytest.approx([0.707007 / 4] * 4, abs=1e-6)
