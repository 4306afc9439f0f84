"""A step of a warm start against numbers by hand, the slow path, finite differences, and other packings."""

import math
from dataclasses import replace

import pytest
import torch

from muster.batch import count_totals
from muster.clock import Clock
from muster.data import EncodedAnswer
from muster.policy import Scores
from muster.records import Sample
from muster.runstate import Plan
from muster.sft import OBJECTIVE, HeldOutAnswers, WarmStart, answer_metrics, batch_of, take_step, train
from muster.update import Budget, update
from naive import assert_equal_gradients, exact_model, exact_policy, gradients, naive_scores
from tiny import tiny_policy


def answers(count: int = 6, seed: int = 0) -> list[EncodedAnswer]:
    """Rows of uneven length; every third one is a conversation, read between two answers."""
    generator = torch.Generator().manual_seed(seed)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 259, (length,), generator=generator).tolist())

    found = []
    for number in range(count):
        length = 2 + (5 * number) % 7
        mask = [True] * length
        if number % 3 == 0:
            length, mask = length + 5, [True, True, False, False, False, *mask]
        sample = Sample(id=str(number), text="p")
        found.append(EncodedAnswer(sample, draw(1 + 3 * number), "p", draw(length), tuple(mask)))
    return found


def learned(policy, budget, *, packs=True, rows=None, lr=1.0):
    """Loss and gradient of one update by plain gradient descent, by name."""
    if not packs:
        policy.plain_because = "the test compares"
    before, batch = policy.snapshot(), batch_of(rows or answers())
    optimizer = torch.optim.SGD([param for _, param in policy.trainable()], lr=lr)
    totals = count_totals(batch, 0, 0, limit=1)
    done = update(
        policy,
        optimizer,
        batch,
        totals,
        OBJECTIVE,
        max_grad_norm=math.inf,
        budget=Budget(tokens=budget),
        clock=Clock(),
    )
    return done, {name: before[name] - param.detach() for name, param in policy.trainable()}


def test_the_loss_is_the_mean_over_the_learned_tokens_of_the_update():
    rows, model = answers(), exact_model("llama")
    batch = batch_of(rows)
    logprobs, _ = naive_scores(model, batch)
    kept = [
        logprobs[row, place]
        for row, answer in enumerate(rows)
        for place, yes in enumerate(answer.mask)
        if yes
    ]
    value = -torch.stack(kept).mean()
    done, found = learned(exact_policy("llama"), 10_000)
    assert len(kept) == sum(sum(answer.mask) for answer in rows) < int(batch.lengths.sum())
    assert done.loss == pytest.approx(value.item(), rel=1e-7)  # 1 / tokens is rounded to float32
    assert_equal_gradients(found, gradients(model, value), 1e-7)


@pytest.mark.parametrize(("budget", "packs"), [(1, True), (40, True), (10_000, False), (60, False)])
def test_packing_and_micro_batches_do_not_change_the_gradient(budget: int, packs: bool):
    whole, expected = learned(exact_policy("llama"), 10_000)
    done, found = learned(exact_policy("llama"), budget, packs=packs)
    assert done.loss == pytest.approx(whole.loss, rel=1e-12)
    assert_equal_gradients(found, expected, 1e-12)
    _, expected = learned(tiny_policy(), 10_000)
    _, found = learned(tiny_policy(), budget, packs=packs)
    assert_equal_gradients(found, expected, 2e-5)


def test_padding_and_company_do_not_change_what_an_answer_adds():
    rows = answers()
    whole, together = learned(exact_policy("llama"), 10_000, rows=rows)
    total = sum(sum(row.mask) for row in rows)
    value, parts = 0.0, {name: torch.zeros_like(grad) for name, grad in together.items()}
    for row in rows:
        done, alone = learned(exact_policy("llama"), 10_000, rows=[row])
        share = sum(row.mask) / total
        value += share * done.loss
        parts = {name: parts[name] + share * alone[name] for name in parts}
    assert value == pytest.approx(whole.loss, rel=1e-7)
    assert_equal_gradients(parts, together, 1e-7)


def test_the_gradient_is_the_slope_of_the_loss():
    policy, rows, eps = exact_policy("qwen3"), answers(3), 1e-6
    _, found = learned(exact_policy("qwen3"), 10_000, rows=rows)
    name, param = next((name, param) for name, param in policy.trainable() if "down_proj" in name)
    place = int(found[name].abs().argmax())

    def loss_at(shift: float) -> float:
        shifted = exact_policy("qwen3")
        with torch.no_grad():
            dict(shifted.trainable())[name].view(-1)[place] += shift
            batch = batch_of(rows)
            return -float(shifted.score(batch, temperature=1.0).logprobs[batch.mask].mean())

    slope = (loss_at(eps) - loss_at(-eps)) / (2 * eps)
    assert param.shape == found[name].shape
    assert float(found[name].view(-1)[place]) == pytest.approx(slope, rel=1e-5)


def test_metrics_are_means_over_the_tokens_that_count():
    rows = [EncodedAnswer(Sample(id="0", text="p"), (5,), "p", (6, 7, 8), (True, False, True))]
    batch = batch_of([*rows, EncodedAnswer(Sample(id="1", text="p"), (5,), "p", (6,), (True,))])
    scores = Scores(
        torch.zeros(2, 3),
        torch.tensor([[1.0, 100.0, 0.5], [0.6, 100.0, 100.0]]),
        torch.tensor([[True, True, False], [True, True, True]]),
    )
    found = answer_metrics(batch, scores)
    assert found["mean_token_accuracy"] == pytest.approx(2 / 3)
    assert found["entropy"] == pytest.approx(0.7)
    assert found["num_completions"] == 2
    assert found["completions/mean_length"] == 1.5


def warm_start(policy=None, **plan) -> WarmStart:
    policy, rows = policy or tiny_policy(), answers()
    numbers = Plan(**{"seed": 1, "num_steps": 4, "prompts_per_step": 3, **plan})
    params = [param for _, param in policy.trainable()]
    return WarmStart(
        policy=policy,
        optimizer=torch.optim.AdamW(params, lr=1e-2),
        items=rows,
        draw=lambda state, count, _: [n % len(rows) for n in range(state.drawn, state.drawn + count)],
        plan=numbers,
        rate=lambda update: 1e-2 / (update + 1),
        budget=Budget(tokens=512),
        end_ids=frozenset({2}),
        held_out=HeldOutAnswers(items=answers(2, seed=9), every=2, at_start=True),
    )


def test_a_step_reports_its_answers_token_by_token():
    run = warm_start(exact_policy("llama"))
    with torch.no_grad():
        batch = batch_of(run.items[:3])
        before = run.policy.score(batch, temperature=1.0)
    report = take_step(run)
    assert [group.sample.id for group in report.groups] == ["0", "1", "2"]
    for row, ((trace,), group) in enumerate(zip(report.traces, report.groups, strict=True)):
        [rollout] = group.rollouts
        assert rollout.completion.ids == run.items[row].answer_ids
        assert trace.mask == run.items[row].mask
        expected = before.logprobs[row, : len(trace.mask)].tolist()
        assert list(trace.logprobs) == pytest.approx(expected, rel=1e-6)
        assert rollout.score.value is None
    mean = -float(before.logprobs[batch.mask].mean())
    assert report.metrics["loss"] == pytest.approx(mean, rel=1e-12)
    assert report.metrics["learning_rate"] == 1e-2
    assert report.metrics["num_tokens"] == sum(item.num_tokens for item in run.items[:3])
    assert report.metrics["epoch"] == 0.5


def test_steps_learn_and_held_out_answers_are_scored_but_never_learned():
    run = warm_start(num_steps=4)
    reports = list(train(run))
    assert [report.step for report in reports] == [0, 1, 2, 3, 4]
    assert [report.step for report in reports if report.eval] == [0, 2, 4]
    first, last = reports[1].metrics["loss"], reports[-1].metrics["loss"]
    assert first is not None
    assert last is not None
    assert last < first
    held_out = reports[0].metrics
    assert held_out["eval_loss"] is not None
    assert held_out["eval_perplexity"] == pytest.approx(math.exp(held_out["eval_loss"]))
    assert held_out["eval_num_tokens"] == sum(sum(item.mask) for item in answers(2, seed=9))
    assert reports[-1].metrics["learning_rate"] == 1e-2 / 4


def test_an_update_without_a_finite_gradient_is_skipped_and_counted():
    run = warm_start(num_steps=1)
    name, param = next(iter(run.policy.trainable()))
    with torch.no_grad():
        param.view(-1)[0] = math.nan
    before = run.policy.snapshot()
    run.held_out = None
    report = take_step(run)
    assert report.metrics["loss"] is None
    assert report.metrics["updates/skipped"] == 1
    assert "update skipped" in report.warnings[0]
    assert torch.equal(dict(run.policy.trainable())[name].nan_to_num(), before[name].nan_to_num())


def test_a_masked_token_has_no_gradient():
    [row] = [replace_mask(answers(1)[0])]
    _, found = learned(exact_policy("llama"), 10_000, rows=[row])
    shown = row._replace(answer_ids=row.answer_ids[:2], mask=row.mask[:2])
    _, expected = learned(exact_policy("llama"), 10_000, rows=[shown])
    assert_equal_gradients(found, expected, 1e-9)


def replace_mask(answer: EncodedAnswer) -> EncodedAnswer:
    """Only its first two tokens are learned; what follows can't reach them."""
    return answer._replace(mask=(True, True, *[False] * (len(answer.answer_ids) - 2)))


def test_a_batch_is_one_row_per_answer_with_its_mask():
    rows = answers(4)
    batch = batch_of(rows)
    assert batch.prompts == tuple(row.ids for row in rows)
    assert batch.group.tolist() == [0, 1, 2, 3]
    for number, row in enumerate(rows):
        assert batch.mask[number].tolist() == [*row.mask, *[False] * (batch.mask.shape[1] - len(row.mask))]
    assert replace(batch).advantages.tolist() == [1.0] * 4
