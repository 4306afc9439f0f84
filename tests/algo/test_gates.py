import pytest
import torch

from muster.algo.gates import EVERY_TOKEN, Gate, no_gate, off_policy_sequence, top_entropy
from muster.algo.recipes import GRPO, Recipe, loss
from muster.errors import ConfigError


def threshold_of(gate: Gate, entropy: torch.Tensor) -> float:
    assert gate.threshold is not None
    return gate.threshold(entropy.flatten())


ENTROPY = torch.tensor([[0.1, 2.0, 0.3, 0.2], [1.5, 0.0, 0.4, 0.6]], dtype=torch.float64)


def test_without_a_gate_every_token_takes_part(make_tokens):
    assert no_gate() is EVERY_TOKEN
    assert EVERY_TOKEN.threshold is None
    assert EVERY_TOKEN.keep(make_tokens(ENTROPY, advantages=[-1.0, -1.0]), 0.0).all()


def test_the_tokens_with_the_highest_entropy_of_the_update_take_part(make_tokens):
    gate = top_entropy(share=0.25)
    threshold = threshold_of(gate, ENTROPY)
    assert threshold == 1.5
    kept = gate.keep(make_tokens(ENTROPY, entropy=ENTROPY), threshold)
    assert kept.tolist() == [[False, True, False, False], [True, False, False, False]]


def test_at_least_one_token_and_at_most_all_take_part():
    assert threshold_of(top_entropy(share=1e-6), ENTROPY) == 2.0
    assert threshold_of(top_entropy(share=1.0), ENTROPY) == 0.0
    assert threshold_of(top_entropy(share=0.2), torch.empty(0)) == 0.0


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ConfigError, match=f"share is {share}"):
        top_entropy(share=share)


def test_a_gate_neither_depends_on_the_micro_batches_nor_alters_the_totals(make_tokens, make_totals):
    gate = top_entropy(share=0.25)
    recipe = Recipe(name="gated", gate=gate)
    threshold = threshold_of(gate, ENTROPY)
    whole = make_tokens(ENTROPY, entropy=ENTROPY)
    totals = make_totals(whole.mask)
    rows = [make_tokens(ENTROPY[i : i + 1], entropy=ENTROPY[i : i + 1]) for i in range(2)]
    parts = [loss(row, recipe, totals, gate_threshold=threshold) for row in rows]
    # Two of eight tokens take part, each still weighing 1 / (2 * 4).
    assert torch.stack(parts).sum().item() == pytest.approx(-0.25)
    assert loss(whole, recipe, totals, gate_threshold=threshold).item() == pytest.approx(-0.25)
    assert loss(whole, GRPO, totals).item() == pytest.approx(-1.0)


def test_a_bad_completion_that_the_policy_has_left_behind_is_masked(make_tokens):
    sampler = torch.zeros(4, 2, dtype=torch.float64)
    now = torch.tensor([[-0.9, -0.3], [-0.4, -0.4], [-0.9, -0.3], [9.0, 9.0]], dtype=torch.float64)
    tokens = make_tokens(now, sampler=sampler, advantages=[-1.0, -1.0, 1.0, -1.0])
    kept = off_policy_sequence(max_drift=0.5).keep(tokens, 0.0)
    assert kept.tolist() == [[False, False], [True, True], [True, True], [True, True]]


def test_drift_is_measured_over_the_tokens_that_count(make_tokens):
    tokens = make_tokens([[-0.4, -9.0]], sampler=[[0.0, 0.0]], advantages=[-1.0], mask=[[1, 0]])
    assert off_policy_sequence(max_drift=0.5).keep(tokens, 0.0).all()


def test_a_gate_leaves_the_kl_term_alone(make_tokens, make_totals):
    tokens = make_tokens([[-2.0]], old=[[-1.0]], sampler=[[0.0]], ref=[[-1.0]], advantages=[-1.0])
    recipe = Recipe(name="gated", gate=off_policy_sequence(max_drift=0.5))
    assert loss(tokens, recipe, make_totals(tokens.mask), kl_coef=0.1).item() == pytest.approx(0.05)
