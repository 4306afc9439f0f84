"""The KL estimators against the exact divergence, on a real model that is sharpened by a temperature.

Axes: N positions, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from muster.embedded import NAME
from muster.errors import ConfigError
from muster.explain.estimators import (
    ESTIMATORS,
    WITH_RATIO,
    Expected,
    Measured,
    Slope,
    draw,
    exact_mean,
    expected,
    measured,
    slopes,
)
from muster.explain.model import ids_of, next_logits, open_policy, token_text
from muster.pictures import Bars, Chart, Curve, Picture, Table
from muster.policy import Policy

TEXT = "My favourite season is autumn, because the leaves turn red and the air smells of"
TEMPERATURE = 0.9
NUM_DRAWS = 1000
NUM_TOP = 10
SEED = 3407
TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
"""Of the curves."""
DIFFERENCES = (-1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0)
"""Of the table of values by log-ratio."""
_ABOUT_SLOPES = (
    "As a term of the loss only the gradient of an estimator counts, and it is not the gradient of what the "
    "estimator estimates: k1's is 0 on average, k2's is that of KL(policy || reference), k3's that of "
    "KL(reference || policy). With policy over old policy in front, differentiable, k1 and k3 have the "
    "gradient of KL(policy || reference), too. In the reward, k1 is right as it is."
)
_REACH = 2.0
_CURVE_POINTS = 81


def explain_kl(
    model: str = NAME,
    *,
    text: str = TEXT,
    temperature: float = TEMPERATURE,
    num_draws: int = NUM_DRAWS,
    num_top: int = NUM_TOP,
    seed: int = SEED,
) -> Picture:
    """The picture of a policy that is the model at this temperature; the reference is it at 1."""
    _refuse_odd(temperature, num_draws, num_top)
    policy = open_policy(model)
    ids = ids_of(policy, text)
    logits = next_logits(policy, ids)
    logprobs, reference = (logits / temperature).log_softmax(-1), logits.log_softmax(-1)
    true = exact_mean(logprobs, reference)
    tokens = draw(logprobs, num_draws, seed)
    over = {name: expected(estimate, logprobs, reference) for name, estimate in ESTIMATORS.items()}
    drawn = {name: measured(estimate, logprobs, reference, tokens) for name, estimate in ESTIMATORS.items()}
    slope = slopes({**ESTIMATORS, **WITH_RATIO}, logits / temperature, reference)
    return Picture(
        name="kl",
        title="KL divergence from the reference, and its estimators",
        blocks=(
            f"The reference is {model} as it is. The policy is the same model at temperature "
            f"{temperature:g}; below 1, that sharpens it. Both are asked for the next token at {len(ids)} "
            f"places of the text {text!r}, over all {logits.shape[1]:,} tokens, in float64.",
            f"Summed over the vocabulary, KL(policy || reference) is {true:.6g} nats a token. A run can't "
            "sum: it has one sampled token at each place, whose d = logprob - reference logprob is all it "
            "knows. k1 = d, k2 = d\u00b2/2 and k3 = exp(-d) - 1 + d estimate the divergence from that.",
            _values_table(true, over, drawn, num_draws),
            "bias is the mean minus the exact divergence, spread how far the estimates of single tokens lie "
            "apart, both as shares of the exact divergence. k1 is unbiased and noisy, often negative. k3 is "
            "unbiased and never negative. k2 is biased, by little while the two are near. Far away, "
            "the exponential in k3 makes a few tokens outweigh all others.",
            *_by_temperature(logits),
            *_by_difference(),
            _slopes_table(slope),
            _ABOUT_SLOPES,
            _top_tokens(policy, logprobs[-1], reference[-1], num_top),
        ),
        numbers={
            "exact": true,
            "positions": len(ids),
            "draws": num_draws,
            "expected": {name: {"mean": e.mean, "spread": e.spread} for name, e in over.items()},
            "measured": {
                name: {"mean": m.mean, "error": m.error, "spread": m.spread} for name, m in drawn.items()
            },
            "gradient": {
                name: {"size": s.size, "forward": s.forward, "reverse": s.reverse}
                for name, s in slope.items()
            },
        },
    )


def _refuse_odd(temperature: float, num_draws: int, num_top: int) -> None:
    if not 0 < temperature < math.inf:
        raise ConfigError(f"--temperature is {temperature}; allowed: a finite number above 0.")
    if not 2 <= num_draws <= 100_000:
        raise ConfigError(f"--draws is {num_draws}; allowed: 2 to 100000 tokens at each place of the text.")
    if not 1 <= num_top <= 50:
        raise ConfigError(f"--top is {num_top}; allowed: 1 to 50 tokens.")


def _values_table(
    true: float, over: Mapping[str, Expected], drawn: Mapping[str, Measured], num_draws: int
) -> Table:
    def share(value: float) -> float | None:
        return value / true if true > 0 else None

    rows: list[tuple[str | float | None, ...]] = [("exact", true, None, None, None, None, None)]
    for name, estimate in over.items():
        found = drawn[name]
        row = (estimate.mean, share(estimate.mean - true), share(estimate.spread))
        rows.append((name, *row, found.mean, share(found.mean - true), share(found.error)))
    return Table(
        title=f"the estimators, summed over the vocabulary and on {num_draws:,} draws a place",
        columns=("", "mean", "bias / exact", "spread / exact", "mean drawn", "bias drawn", "give or take"),
        rows=tuple(rows),
    )


def _by_temperature(logits: Float[Tensor, "N V"]) -> tuple[Chart, Chart]:
    """Means and spreads as the policy leaves the reference."""
    reference = logits.log_softmax(-1)
    exacts: list[float] = []
    found: dict[str, list[Expected]] = {name: [] for name in ESTIMATORS}
    for temperature in TEMPERATURES:
        logprobs = (logits / temperature).log_softmax(-1)
        exacts.append(exact_mean(logprobs, reference))
        for name, estimate in ESTIMATORS.items():
            found[name].append(expected(estimate, logprobs, reference))

    def curve(name: str, values: Sequence[float]) -> Curve:
        return Curve(name=name, x=TEMPERATURES, y=tuple(values))

    means = [curve(name, [one.mean for one in all_of]) for name, all_of in found.items()]
    spreads = [curve(name, [one.spread for one in all_of]) for name, all_of in found.items()]
    label = "temperature of the policy (the reference has 1)"
    return (
        Chart(
            title="mean of the estimators as the policy leaves the reference",
            x_label=label,
            y_label="nats a token",
            curves=(curve("exact", exacts), *means),
        ),
        Chart(
            title="spread of one token's estimate",
            x_label=label,
            y_label="standard deviation, nats",
            curves=tuple(spreads),
            is_log=True,
        ),
    )


def _by_difference() -> tuple[Chart, Chart, Table]:
    """Value and derivative by the log-ratio of the sampled token."""
    reach = torch.linspace(-_REACH, _REACH, _CURVE_POINTS, dtype=torch.float64)
    few = torch.tensor(DIFFERENCES, dtype=torch.float64)
    curves = {name: value_and_slope(name, reach) for name in ESTIMATORS}
    points = {name: value_and_slope(name, few) for name in ESTIMATORS}
    label = "d = logprob - reference logprob of the sampled token"
    charts = tuple(
        Chart(
            title=title,
            x_label=label,
            y_label=unit,
            curves=tuple(
                Curve(name=name, x=tuple(reach.tolist()), y=tuple(both[place].tolist()))
                for name, both in curves.items()
            ),
        )
        for place, (title, unit) in enumerate(
            [("estimate of one token", "nats"), ("its derivative by the logprob", "derivative")]
        )
    )
    columns = [points[name][place].tolist() for place in (0, 1) for name in ESTIMATORS]
    table = Table(
        title="estimate and derivative by d",
        columns=("d", *ESTIMATORS, *(f"d{name}/dlogp" for name in ESTIMATORS)),
        rows=tuple(zip(DIFFERENCES, *columns, strict=True)),
    )
    return charts[0], charts[1], table


def value_and_slope(name: str, differences: Float[Tensor, " N"]) -> tuple[Tensor, Tensor]:
    """An estimator's value at each log-ratio, and its derivative by the policy's logprob."""
    leaf = differences[:, None].clone().requires_grad_()
    values = ESTIMATORS[name](leaf, torch.zeros_like(leaf), None)
    (slope,) = torch.autograd.grad(values.sum(), leaf)
    return values.detach()[:, 0] + 0.0, slope[:, 0] + 0.0


def _slopes_table(found: Mapping[str, Slope]) -> Table:
    return Table(
        title="expected gradient in the loss, by the policy's logits",
        columns=(
            "",
            "size / KL(policy||ref)",
            "cosine, KL(policy||ref)",
            "cosine, KL(ref||policy)",
        ),
        rows=tuple((name, one.size, one.forward, one.reverse) for name, one in found.items()),
    )


def _top_tokens(policy: Policy, logprobs: Tensor, reference: Tensor, num_top: int) -> Bars:
    """The likeliest tokens after the text, under both."""
    tokens = reference.topk(min(num_top, len(reference))).indices.tolist()
    return Bars(
        title="likeliest next tokens after the text",
        value_label="probability",
        labels=tuple(token_text(policy, token) for token in tokens),
        series={
            "policy": tuple(logprobs[tokens].exp().tolist()),
            "reference": tuple(reference[tokens].exp().tolist()),
        },
    )
