"""The KL picture against sums in float64 by hand, and on a tiny model against a plain forward pass."""

from pathlib import Path

import pytest
import torch

from muster.errors import ConfigError
from muster.explain.estimators import ESTIMATORS, WITH_RATIO, draw, exact_mean, expected, measured, slopes
from muster.explain.kl import explain_kl, value_and_slope
from muster.explain.model import next_logits
from pictured import numbers_of
from tiny import ids_of, save_tiny_model, tiny_policy

P, Q = torch.tensor([[0.5, 0.3, 0.2]]).double().log(), torch.tensor([[0.4, 0.4, 0.2]]).double().log()

BY_DIFFERENCE = [
    (-1.0, 0.5, 0.718282, -1.0, -1.718282),
    (-0.1, 0.005, 0.005171, -0.1, -0.105171),
    (0.0, 0.0, 0.0, 0.0, 0.0),
    (0.5, 0.125, 0.106531, 0.5, 0.393469),
    (2.0, 2.0, 1.135335, 2.0, 0.864665),
]
"""d, k2, k3, and the derivatives of both."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("kl") / "model")


def test_estimates_and_derivatives_by_the_log_ratio():
    d = torch.tensor([row[0] for row in BY_DIFFERENCE], dtype=torch.float64)
    for name, place in (("k2", 1), ("k3", 2)):
        value, slope = value_and_slope(name, d)
        assert value.tolist() == pytest.approx([row[place] for row in BY_DIFFERENCE], abs=1e-6)
        assert slope.tolist() == pytest.approx([row[place + 2] for row in BY_DIFFERENCE], abs=1e-6)
    value, slope = value_and_slope("k1", d)
    assert value.tolist() == d.tolist()
    assert slope.tolist() == [1.0] * len(d)


def test_expectations_over_three_tokens():
    assert exact_mean(P, Q) == pytest.approx(0.025267, abs=1e-6)
    found = {name: expected(estimate, P, Q).mean for name, estimate in ESTIMATORS.items()}
    assert found == pytest.approx({"k1": 0.025267, "k2": 0.024862, "k3": 0.025267}, abs=1e-6)


def test_the_spread_is_that_of_one_token():
    d, p = (P - Q)[0], P[0].exp()
    by_hand = float(((p * d.square()).sum() - (p * d).sum().square()).sqrt())
    assert expected(ESTIMATORS["k1"], P, Q).spread == pytest.approx(by_hand)


def test_gradients_are_those_that_the_formulas_promise():
    found = slopes({**ESTIMATORS, **WITH_RATIO}, P, Q)
    assert found["k1"].size == pytest.approx(0, abs=1e-9)
    assert found["k1"].forward is None
    for name in ("k2", *WITH_RATIO):
        assert (found[name].size, found[name].forward) == pytest.approx((1, 1))
    # k3: [0.1, -0.1, 0] against the true [0.098938, -0.093885, -0.005053].
    assert found["k3"].reverse == pytest.approx(1)
    assert found["k3"].size == pytest.approx(0.141421 / 0.136488, abs=1e-4)
    assert found["k3"].forward == pytest.approx(0.0192823 / (0.141421 * 0.136488), abs=1e-4)


def test_draws_follow_from_the_seed_and_their_means_come_near():
    tokens = draw(P, 20_000, 7)
    assert torch.equal(tokens, draw(P, 20_000, 7))
    assert not torch.equal(tokens, draw(P, 20_000, 8))
    for estimate in ESTIMATORS.values():
        over, found = expected(estimate, P, Q), measured(estimate, P, Q, tokens)
        assert abs(found.mean - over.mean) < 4 * found.error
        assert found.spread == pytest.approx(over.spread, rel=0.05)


def test_distributions_are_the_models_own():
    policy, ids = tiny_policy(), ids_of("some text")
    with torch.no_grad():
        whole = policy.base(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    assert torch.allclose(next_logits(policy, ids), whole.double(), atol=1e-4)


def test_the_picture_of_a_model_is_exact_in_float64(model: Path):
    picture = explain_kl(str(model), text="a text", temperature=0.9, num_draws=50, num_top=3, seed=1)
    logits = next_logits(tiny_policy(), ids_of("a text"))
    p, q = (logits / 0.9).log_softmax(-1), logits.log_softmax(-1)
    assert numbers_of(picture)["exact"] == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-4)
    assert numbers_of(picture)["positions"] == 6
    assert numbers_of(picture)["expected"]["k1"]["mean"] == pytest.approx(
        numbers_of(picture)["exact"], rel=1e-9
    )
    assert numbers_of(picture)["expected"]["k2"]["mean"] != pytest.approx(
        numbers_of(picture)["exact"], rel=1e-3
    )
    again = explain_kl(str(model), text="a text", temperature=0.9, num_draws=50, num_top=3, seed=1)
    assert again.to_plain() == picture.to_plain()


def test_at_temperature_1_there_is_nothing_between_the_two(model: Path):
    numbers = numbers_of(explain_kl(str(model), text="a text", temperature=1.0, num_draws=5))
    assert numbers["exact"] == 0
    assert all(one["mean"] == 0 for one in numbers["expected"].values())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temperature": 0.0}, "--temperature is 0"),
        ({"temperature": float("nan")}, "--temperature is nan"),
        ({"num_draws": 1}, "--draws is 1"),
        ({"num_top": 0}, "--top is 0"),
        ({"text": ""}, "--text has 0 tokens .* Give a longer text"),
        ({"text": "x" * 129}, "--text has 129 tokens .* Give a shorter text"),
    ],
)
def test_settings_that_make_no_sense_are_refused(model: Path, settings, says):
    with pytest.raises(ConfigError, match=says):
        explain_kl(str(model), **settings)
