"""One optimizer step: the same gradient however the batch is cut, and no harm from what is not finite.

What is compared in float64 is GPT-2, whose norms stay in float64; Llama's compute in float32 always.
"""

import math
from dataclasses import replace

import pytest
import torch

from muster.algo.gates import top_entropy
from muster.algo.kl import k3
from muster.algo.objectives import clip
from muster.algo.recipes import DAPO, DR_GRPO, GRPO, GSPO, RECIPES
from muster.batch import count_totals
from muster.clock import Clock
from muster.update import Budget, Objective, score_in_parts, update
from tiny import tiny_policy
from toy_run import toy_batch

LIMIT = 8
WHOLE, SINGLE = 100_000, 1


def sgd(policy, lr=1.0):
    return torch.optim.SGD([param for _, param in policy.trainable()], lr=lr)


def run_update(policy, batch, objective, *, optimizer=None, totals=None, budget=WHOLE, max_grad_norm=1e9):
    return update(
        policy,
        optimizer or sgd(policy, 0.0),
        batch,
        totals or count_totals(batch, 0, 0, LIMIT),
        objective,
        max_grad_norm=max_grad_norm,
        budget=budget if isinstance(budget, Budget) else Budget(tokens=budget),
        clock=Clock(),
    )


def moved(policy, batch, objective, **settings):
    """Minus the gradient: what SGD at rate 1 changes, and what the update said; weights are put back."""
    before = policy.snapshot()
    done = run_update(policy, batch, objective, optimizer=sgd(policy), **settings)
    change = {name: param.detach() - before[name] for name, param in policy.trainable()}
    with torch.no_grad():
        for name, param in policy.trainable():
            param.copy_(before[name])
    return change, done


def distance(first, second):
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def with_references(batch, policy):
    """Old and reference logprobs a little off the policy's own, so that every term has a gradient."""
    noise = torch.randn(batch.ids.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    now = score_in_parts(policy, batch, 1.0, Budget(tokens=WHOLE)).logprobs
    return replace(batch, old_logprobs=now + 0.1 * noise, ref_logprobs=now - 0.2 * noise.flip(0))


def everything_on(recipe):
    return Objective(recipe=replace(recipe, kl=k3), temperature=0.9, kl_coef=0.3, entropy_coef=0.05)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_gradient_does_not_depend_on_micro_batches_or_packing(name):
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = with_references(toy_batch(policy, num_prompts=2, group_size=2), policy)
    objective = everything_on(RECIPES[name])
    whole, done = moved(policy, batch, objective)
    assert max(float(change.abs().max()) for change in whole.values()) > 1e-3
    for budget in (SINGLE, 14):
        cut, again = moved(policy, batch, objective, budget=budget)
        assert distance(whole, cut) < 1e-10
        assert again.loss == pytest.approx(done.loss, abs=1e-10)
        assert again.grad_norm == pytest.approx(done.grad_norm, abs=1e-9)
    plain = tiny_policy("gpt2", dtype=torch.float64)
    plain.plain_because = "for this test"
    assert not plain.packs
    assert distance(whole, moved(plain, batch, objective, budget=40)[0]) < 1e-10


def test_a_gate_by_entropy_does_not_depend_on_micro_batches():
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = toy_batch(policy)
    gated = Objective(recipe=replace(DAPO, gate=top_entropy(share=0.3)), temperature=1.0)
    whole, _ = moved(policy, batch, gated)
    cut, _ = moved(policy, batch, gated, budget=SINGLE)
    assert distance(whole, cut) < 1e-10
    assert distance(whole, moved(policy, batch, replace(gated, recipe=DAPO))[0]) > 1e-4


def test_adam_goes_the_same_way_for_five_steps_however_the_rollouts_are_cut():
    def trained(budget, packs):
        policy = tiny_policy("gpt2", dtype=torch.float64)
        batch = with_references(toy_batch(policy, num_prompts=2, group_size=2), policy)
        if not packs:
            policy.plain_because = "for this test"
        optimizer = torch.optim.AdamW([p for _, p in policy.trainable()], lr=1e-3, weight_decay=0.1)
        for _ in range(5):
            run_update(
                policy, batch, everything_on(GRPO), optimizer=optimizer, budget=budget, max_grad_norm=1.0
            )
        return policy.snapshot()

    whole = trained(WHOLE, True)
    assert distance(whole, trained(SINGLE, True)) < 1e-9
    assert distance(whole, trained(14, True)) < 1e-9
    assert distance(whole, trained(30, False)) < 1e-9


@pytest.mark.parametrize(("recipe", "expected"), [(GRPO, 0.0), (DAPO, 1 / 3), (DR_GRPO, 0.125)])
def test_the_loss_of_a_first_step_is_that_of_its_aggregation(recipe, expected):  # N3
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = toy_batch(policy, num_prompts=1, group_size=2)
    lengths = torch.tensor([2, 4])
    mask = torch.arange(6)[None] < lengths[:, None]
    batch = replace(
        batch,
        ids=torch.randint(3, 259, (2, 6), generator=torch.Generator().manual_seed(0)),
        lengths=lengths,
        mask=mask,
        sampler_logprobs=torch.zeros(2, 6),
        advantages=torch.tensor([1.0, -1.0]),
    )
    own = score_in_parts(policy, batch, 1.0, Budget(tokens=WHOLE)).logprobs
    batch = replace(batch, sampler_logprobs=own)
    done = run_update(policy, batch, Objective(recipe=recipe, temperature=1.0), budget=SINGLE)
    assert done.loss == pytest.approx(expected, abs=1e-6)
    assert done.grad_norm > 0.01
    assert done.stats["ratio/max"].value == 1.0


@pytest.mark.parametrize("recipe", [GRPO, DAPO, DR_GRPO, GSPO])
def test_a_group_without_signal_counts_in_the_totals_as_if_it_were_sent_through(recipe):
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = toy_batch(policy)
    batch = replace(batch, advantages=torch.where(batch.group == 1, 0.0, batch.advantages))
    objective = Objective(recipe=recipe, temperature=1.0)
    sent, done = moved(policy, batch, objective)
    rows = [row for row, group in enumerate(batch.group.tolist()) if group != 1]
    idle_tokens = int(batch.lengths[batch.group == 1].sum())
    part = batch.select(rows)
    left_out, again = moved(policy, part, objective, totals=count_totals(part, 3, idle_tokens, LIMIT))
    assert distance(sent, left_out) < 1e-12
    assert again.loss == pytest.approx(done.loss, abs=1e-12)
    assert distance(sent, moved(policy, part, objective)[0]) > 1e-4  # its own totals give another gradient


def test_the_divisor_is_that_of_one_update_not_of_all_that_was_sampled():  # B11
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = toy_batch(policy, num_prompts=4)
    objective = Objective(recipe=DAPO, temperature=1.0)
    half = batch.select([row for row, group in enumerate(batch.group.tolist()) if group < 2])
    assert len(half) == 6
    assert count_totals(half, 0, 0, LIMIT).tokens == int(half.lengths.sum())
    change, done = moved(policy, half, objective)
    mean = (-half.advantages[:, None] * half.mask).sum() / half.mask.sum()  # ratio 1
    assert done.loss == pytest.approx(float(mean), abs=1e-6)
    one_by_one = [moved(policy, half.select([row]), objective)[0] for row in range(6)]
    weights = half.lengths.double() / half.lengths.sum()
    for name, value in change.items():
        parts = sum(float(w) * part[name] for w, part in zip(weights, one_by_one, strict=True))
        assert float((value - parts).abs().max()) < 1e-7


def test_a_completion_masked_out_adds_to_neither_side_of_the_fraction():
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = toy_batch(policy)
    gone = 4
    mask = batch.mask.clone()
    mask[gone] = False
    kept = batch.select([row for row in range(len(batch)) if row != gone])
    for recipe in (GRPO, DAPO, DR_GRPO):
        objective = Objective(recipe=recipe, temperature=1.0)
        masked, done = moved(policy, replace(batch, mask=mask), objective)
        without, again = moved(policy, kept, objective)
        assert distance(masked, without) < 1e-12
        assert done.loss == pytest.approx(again.loss, abs=1e-12)


def test_the_gradient_is_clipped_and_its_norm_before_that_is_told():
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = toy_batch(policy)
    objective = Objective(recipe=GRPO, temperature=1.0)
    free, done = moved(policy, batch, objective)
    norm = math.sqrt(sum(float(change.square().sum()) for change in free.values()))
    assert done.grad_norm == pytest.approx(norm, rel=1e-9)
    clipped, again = moved(policy, batch, objective, max_grad_norm=norm / 4)
    assert again.grad_norm == pytest.approx(norm, rel=1e-9)
    shrunk = math.sqrt(sum(float(change.square().sum()) for change in clipped.values()))
    assert shrunk == pytest.approx(norm / 4, rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_no_weight_and_no_moment(bad):  # B55
    policy = tiny_policy()
    batch = toy_batch(policy)
    optimizer = torch.optim.AdamW([param for _, param in policy.trainable()], lr=1e-3, weight_decay=0.1)
    good = Objective(recipe=GRPO, temperature=1.0)
    assert run_update(policy, batch, good, optimizer=optimizer).stepped
    weights = policy.snapshot()
    moments = [value.clone() for state in optimizer.state.values() for value in state.values()]
    broken = replace(good, recipe=replace(GRPO, objective=lambda tokens: clip(tokens) * bad))
    done = run_update(policy, batch, broken, optimizer=optimizer)
    assert not done.stepped
    assert not math.isfinite(done.grad_norm)
    assert all(torch.equal(param, weights[name]) for name, param in policy.trainable())
    after = [value for state in optimizer.state.values() for value in state.values()]
    assert all(torch.equal(one, two) for one, two in zip(moments, after, strict=True))
    assert all(param.grad is None for _, param in policy.trainable())


def test_running_out_of_memory_halves_the_budget_and_gives_the_same_result():
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = toy_batch(policy)
    calls = 0

    def short_of_memory(tokens):
        nonlocal calls
        calls += 1
        if calls == 2:  # after a first micro-batch has left a gradient
            raise torch.cuda.OutOfMemoryError("no memory")
        return clip(tokens)

    expected, _ = moved(policy, batch, Objective(recipe=GRPO, temperature=1.0))
    budget = Budget(tokens=40)
    recipe = replace(GRPO, objective=short_of_memory)
    change, done = moved(policy, batch, Objective(recipe=recipe, temperature=1.0), budget=budget)
    assert budget.tokens == 20
    assert calls > 3
    assert done.stepped
    assert distance(expected, change) < 1e-10
    assert done.scores.logprobs.shape == batch.ids.shape


def test_a_device_that_never_has_enough_memory_says_so():
    policy = tiny_policy()
    batch = toy_batch(policy)

    def never(tokens):
        raise torch.cuda.OutOfMemoryError("no memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        run_update(policy, batch, Objective(recipe=replace(GRPO, objective=never), temperature=1.0))


def test_no_metric_holds_a_graph_and_the_logged_loss_is_that_of_the_whole():  # B63, B80d
    policy = tiny_policy()
    batch = toy_batch(policy)
    objective = Objective(recipe=DAPO, temperature=1.0)
    done = run_update(policy, batch, objective, budget=SINGLE)
    assert not done.scores.logprobs.requires_grad
    assert not done.scores.entropy.requires_grad
    assert isinstance(done.loss, float)
    assert run_update(policy, batch, objective).loss == pytest.approx(done.loss, abs=1e-6)
    whole = run_update(policy, batch, objective).stats
    for name, stat in done.stats.items():
        assert stat.value == pytest.approx(whole[name].value, abs=1e-5), name


def test_the_entropy_bonus_raises_entropy():
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = replace(toy_batch(policy), advantages=torch.zeros(9))
    before = score_in_parts(policy, batch, 1.0, Budget(tokens=WHOLE)).entropy[batch.mask].mean()
    objective = Objective(recipe=DAPO, temperature=1.0, entropy_coef=1.0)
    run_update(policy, batch, objective, optimizer=sgd(policy, 0.01))
    after = score_in_parts(policy, batch, 1.0, Budget(tokens=WHOLE)).entropy[batch.mask].mean()
    assert after > before + 1e-4


def test_the_kl_term_has_a_gradient_of_its_own_equal_to_finite_differences():  # B22
    policy = tiny_policy("gpt2", dtype=torch.float64)
    batch = with_references(toy_batch(policy), policy)
    batch = replace(batch, advantages=torch.zeros(len(batch)))
    objective = Objective(recipe=DAPO, temperature=1.0, kl_coef=0.1)
    change, _ = moved(policy, batch, objective)
    for name in ("transformer.h.0.mlp.c_fc.weight", "transformer.ln_f.weight"):
        param = dict(policy.trainable())[name]
        index = (0,) * param.ndim
        losses = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                param[index] += step
            losses.append(run_update(policy, batch, objective).loss)
            with torch.no_grad():
                param[index] -= step
        slope = (losses[0] - losses[1]) / 2e-5
        assert abs(slope) > 1e-7
        assert float(-change[name][index]) == pytest.approx(slope, abs=1e-6)
