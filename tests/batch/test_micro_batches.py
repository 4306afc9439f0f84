from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD

from muster.algo.recipes import RECIPES
from muster.algo.tokens import Totals
from muster.batch import Row, collate, count_totals, head_batches, micro_batches, pack, pad
from muster.clock import Clock
from muster.records import Completion
from muster.update import Budget, Objective, update
from naive import exact_policy, make_batch

groups_of_lengths = st.lists(
    st.tuples(st.integers(1, 12), st.lists(st.integers(1, 9), min_size=1, max_size=6)), min_size=1, max_size=5
)


def _completion(*ids):
    return Completion(ids=ids, sampler_logprobs=(-1.0,) * len(ids), finish_reason="stop", version=0)


def _cost(batch, rows, packs):
    """Tokens of a micro-batch, counted from scratch."""
    lengths = [int(batch.lengths[row]) for row in rows]
    prompts = [len(batch.prompts[int(batch.group[row])]) for row in rows]
    if packs:
        groups = {int(batch.group[row]) for row in rows}
        return sum(lengths) + sum(len(batch.prompts[group]) for group in groups)
    return len(rows) * max(prompt + length for prompt, length in zip(prompts, lengths, strict=True))


@given(groups_of_lengths, st.integers(1, 80), st.booleans())
def test_every_row_comes_once_in_order_and_under_the_budget(groups, budget, packs):
    batch = make_batch(groups)
    parts = list(micro_batches(batch, budget, packs))
    assert [row for part in parts for row in part] == list(range(len(batch)))
    for part in parts:
        assert _cost(batch, part, packs) <= budget or len(part) == 1
    # None is cut sooner than it must be.
    for part, following in pairwise(parts):
        assert _cost(batch, [*part, following[0]], packs) > budget


def test_a_budget_goes_from_one_completion_to_all():
    batch = make_batch([(5, [3, 3]), (2, [4])])
    assert list(micro_batches(batch, 1, True)) == [[0], [1], [2]]
    assert list(micro_batches(batch, 11, True)) == [[0, 1], [2]]
    assert list(micro_batches(batch, 17, True)) == [[0, 1, 2]]
    assert list(micro_batches(batch, 16, True)) == [[0, 1], [2]]
    assert list(micro_batches(batch, 23, False)) == [[0, 1], [2]]
    assert list(micro_batches(batch, 24, False)) == [[0, 1, 2]]


def test_groups_are_not_put_together_where_that_is_no_faster():
    batch = make_batch([(5, [3, 3]), (2, [4]), (2, [5, 9])])
    assert list(micro_batches(batch, 100, True, 17)) == [[0, 1, 2], [3, 4]]
    assert list(micro_batches(batch, 100, True, 16)) == [[0, 1], [2], [3, 4]]
    # A group that is larger than enough stays whole, unless the budget cuts it.
    assert list(micro_batches(batch, 100, True, 1)) == [[0, 1], [2], [3, 4]]
    assert list(micro_batches(batch, 11, True, 1)) == [[0, 1], [2], [3], [4]]
    assert list(micro_batches(batch, 100, False, 24)) == [[0, 1, 2], [3, 4]]
    assert list(micro_batches(batch, 24, True, 100)) == list(micro_batches(batch, 24, True))


def test_a_packed_row_holds_each_prompt_once_and_restarts_positions_after_it():
    completions = [(0, (1, 2, 3)), (0, (4,)), (0, (7, 8)), (1, (5, 6))]
    batch = collate([(10, 11, 12), (20,)], [Row(group, _completion(*ids), 0.0) for group, ids in completions])
    packed = pack(batch)
    # The last token of a completion predicts nothing, and the shorter completion comes first.
    assert packed.ids.tolist() == [[10, 11, 12, 7, 1, 2, 20, 5]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 3, 4, 0, 1]]
    assert packed.predictors.tolist() == [[2, 4, 5], [2, 0, 0], [2, 3, 0], [6, 7, 0]]
    assert [tuple(span) for span in packed.layout.groups] == [(0, 3, (0, 1, 2)), (6, 1, (1,))]


@given(groups_of_lengths, st.integers(1, 30))
def test_the_head_takes_rows_in_order_and_no_more_tokens_than_it_may(groups, max_tokens):
    batch = make_batch(groups)
    parts = list(head_batches(batch, max_tokens))
    assert [row for part in parts for row in part] == list(range(len(batch)))
    counts = [int(batch.lengths[part].sum()) for part in parts]
    assert all(count <= max_tokens or len(part) == 1 for count, part in zip(counts, parts, strict=True))
    for count, following in zip(counts, parts[1:], strict=False):
        assert count + int(batch.lengths[following[0]]) > max_tokens


def test_plain_rows_are_padded_at_the_end():
    batch = collate([(10, 11, 12), (20,)], [Row(0, _completion(1, 2), 0.0), Row(1, _completion(5), 0.0)])
    padded = pad(batch)
    assert padded.ids.tolist() == [[10, 11, 12, 1, 2], [20, 5, 0, 0, 0]]
    assert padded.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert padded.predictors.tolist() == [[2, 3], [5, 0]]


def test_rows_of_a_prompt_become_neighbours_and_keep_their_order():
    rows = [Row(1, _completion(7), 0.5), Row(0, _completion(8, 9), -1.0), Row(1, _completion(6, 2), 2.0)]
    batch = collate([(3,), (4,)], rows)
    assert batch.group.tolist() == [0, 1, 1]
    assert batch.ids.tolist() == [[8, 9], [7, 0], [6, 2]]
    assert batch.mask.tolist() == [[True, True], [True, False], [True, True]]
    assert batch.advantages.tolist() == [-1.0, 0.5, 2.0]
    picked = batch.select([2, 0])
    assert picked.ids.tolist() == [[6, 2], [8, 9]]
    assert picked.group.tolist() == [1, 0]


def test_a_pad_id_inside_a_completion_is_a_token_like_any_other():
    batch = collate([(2, 5)], [Row(0, _completion(0, 0, 2), 1.0)])
    assert batch.mask.tolist() == [[True, True, True]]


def test_totals_count_rows_that_were_left_out_for_want_of_signal():
    batch = make_batch([(3, [2, 5])])
    assert count_totals(batch, 3, 20, 64) == Totals(tokens=27, sequences=5, limit=64)


def _step(recipe, budget, packs=True):
    """Parameters after one plain gradient step on a fixed batch."""
    policy = exact_policy("qwen3")
    batch = make_batch([(6, [5, 1, 3]), (2, [4, 7]), (9, [1])])
    generator = torch.Generator().manual_seed(3)

    def near(values, spread):
        return values.double() + spread * torch.randn(values.shape, generator=generator)

    with torch.no_grad():
        now = policy.score(batch, temperature=0.9).logprobs
    batch = replace(
        batch, old_logprobs=near(now, 0.3), ref_logprobs=near(now, 0.5), sampler_logprobs=near(now, 0.4)
    )
    if not packs:
        policy.plain_because = "the test compares"
    done = update(
        policy,
        SGD([param for _, param in policy.trainable()], lr=1.0),
        batch,
        count_totals(batch, 1, 4, 16),
        Objective(recipe=recipe, temperature=0.9, kl_coef=0.1, entropy_coef=0.01),
        max_grad_norm=float("inf"),
        budget=Budget(tokens=budget),
        clock=Clock(),
    )
    assert done.stepped
    assert done.grad_norm > 1e-4
    return done, {name: param.detach().clone() for name, param in policy.trainable()}


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipes_gradient_depends_on_how_the_update_is_cut(name):
    recipe = RECIPES[name]
    whole, expected = _step(recipe, 10_000)
    for budget, packs in ((1, True), (17, True), (30, False)):
        done, weights = _step(recipe, budget, packs)
        assert done.loss == pytest.approx(whole.loss, rel=1e-10, abs=1e-12)
        torch.testing.assert_close(done.scores.logprobs, whole.scores.logprobs, rtol=1e-10, atol=1e-12)
        for key, value in weights.items():
            torch.testing.assert_close(value, expected[key], rtol=1e-10, atol=1e-10)
