"""What the reference's logprobs say of a step: the sizes of the KL estimators' gradients and charges.

With d = logprob - reference logprob, the gradient in a logprob is d for k2 and 1 - exp(-d) for k3. A
differentiable ratio in front adds the estimator itself (at a ratio of 1): d + 1 for k1, d + d^2 / 2 for k2, d
for k3. The 1 of k1, with a ratio or without, averages to 0 over samples of the policy: it pulls nowhere.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muster.records import Rollout, Trace

_BOUND = 20.0
"""Nats below 0 that the estimators bound d at."""

Numbers = NDArray[np.float64]
Member = tuple[Rollout, Trace | None]


class KlFacts(NamedTuple):
    """Of the rollouts of a step that the reference looked at."""

    gradients: Mapping[str, float]
    """By estimator, mean size over the tokens that count; empty where none went through an update."""
    moving: Mapping[str, float]
    """The same behind a differentiable ratio."""
    charges: Mapping[str, float]
    """By estimator, how much its sums over the completions differ within groups: a standard deviation."""
    scores: float
    """How much the scores of the same completions do."""


def kl_facts(groups: Sequence[Sequence[Member]]) -> KlFacts | None:
    """The facts of these groups; None without a reference."""
    seen = [[(r, t) for r, t in members if t is not None and t.ref_logprobs] for members in groups]
    if not any(seen):
        return None
    new = [_new_distances(trace) for members in seen for _, trace in members if trace.logprobs]
    d = np.concatenate(new) if new else np.empty(0)
    charged = [
        [(rollout.score.value, _charges(rollout, trace)) for rollout, trace in members] for members in seen
    ]
    scored = [[(score, sums) for score, sums in some if score is not None] for some in charged]
    return KlFacts(
        gradients=_sizes({"k2": d, "k3": np.expm1(-d.clip(min=-_BOUND))}),
        moving=_sizes({"k1": d, "k2": d + np.square(d) / 2, "k3": d}),
        charges={
            name: _deviation_within([[sums[name] for _, sums in some] for some in scored])
            for name in ("k1", "k2", "k3")
        },
        scores=_deviation_within([[score for score, _ in some] for some in scored]),
    )


def _sizes(gradients: Mapping[str, Numbers]) -> dict[str, float]:
    return {name: float(np.abs(values).mean()) for name, values in gradients.items() if values.size}


def _new_distances(trace: Trace) -> Numbers:
    """By the last forward, the d of the tokens that count."""
    return (np.asarray(trace.logprobs) - np.asarray(trace.ref_logprobs))[np.asarray(trace.mask, dtype=bool)]


def _charges(rollout: Rollout, trace: Trace) -> dict[str, float]:
    """What each estimator comes to over a completion, as it was sampled."""
    d = np.asarray(rollout.completion.sampler_logprobs) - np.asarray(trace.ref_logprobs)
    bounded = d.clip(min=-_BOUND)
    return {
        "k1": float(d.sum()),
        "k2": float(np.square(d).sum() / 2),
        "k3": float((np.expm1(-bounded) + bounded).sum()),
    }


def _deviation_within(groups: Sequence[Sequence[float]]) -> float:
    """Standard deviation around the groups' own means."""
    centered = [np.asarray(values) - np.mean(values) for values in groups if values]
    return float(np.concatenate(centered).std()) if centered else 0.0
