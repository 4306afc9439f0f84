from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn

from muster import logprobs
from muster.batch import Row, collate
from muster.errors import ConfigError, ModelError
from muster.logprobs import pad_kept, token_stats
from muster.policy import Policy, enable_gradient_checkpointing
from muster.records import Completion
from naive import assert_equal_gradients, exact_model, exact_policy, gradients, make_batch, naive_scores
from tiny import PLAIN, SHARING, tiny_model, tiny_policy, tiny_tokenizer


def _stats(logits, target, temperature=1.0, kept=None):
    """Stats of one token under these logits, through a head that is the identity."""
    hidden = torch.tensor([logits])
    return token_stats(
        lambda x: x,
        hidden,
        torch.tensor([target]),
        temperature=temperature,
        num_vocab=len(logits),
        kept=kept,
    )


@pytest.mark.parametrize(
    ("temperature", "expected", "entropy"),
    [
        (0.5, [-0.142932, -2.142932, -4.142932], 0.441057),
        (0.7, [-0.260118, -1.688690, -3.117261], 0.650573),
        (1.0, [-0.407606, -1.407606, -2.407606], 0.832396),
        (2.0, [-0.680270, -1.180270, -1.680270], 1.020191),
    ],
)
def test_temperature_divides_the_logits(temperature, expected, entropy):
    for target, value in enumerate(expected):
        stats = _stats([2.0, 1.0, 0.0], target, temperature)
        assert float(stats.logprobs) == pytest.approx(value, abs=1e-6)
        assert float(stats.entropy) == pytest.approx(entropy, abs=3e-6)


def test_logits_of_a_low_precision_head_are_normalized_in_float32():
    # B26: in bfloat16 throughout it would be [-0.632812, -0.757812, -20.75].
    policy = tiny_policy(dtype=torch.bfloat16)
    hidden = torch.randn(5, 32, dtype=torch.bfloat16)
    assert policy.logits(hidden).dtype == torch.float32
    values = [float(_stats([20.1, 20.0, 0.0], target).logprobs) for target in range(3)]
    assert values == pytest.approx([-0.644397, -0.744397, -20.744397], abs=1e-5)


def test_a_kept_set_is_what_logprobs_are_normalized_over():
    stats = _stats([2.0, 1.0, 0.0, 7.0], 1, kept=torch.tensor([[0, 1, -1]]))
    # Two tokens a logit apart: 1 / (1 + e).
    assert float(stats.logprobs) == pytest.approx(-1.313262, abs=1e-6)
    assert float(stats.entropy) == pytest.approx(0.582203, abs=1e-6)


def test_impossible_tokens_add_nothing_to_entropy():
    stats = _stats([0.0, 0.0, float("-inf")], 0)
    assert float(stats.entropy) == pytest.approx(0.693147, abs=1e-6)


def test_kept_sets_of_different_sizes_are_padded():
    assert pad_kept([(3,), (1, 2)]).tolist() == [[3, -1], [1, 2]]
    assert pad_kept([]).shape == (0, 0)


@pytest.mark.parametrize("family", ["granite", "cohere", "gemma2", "gemma", "gpt2"])
def test_what_a_family_does_to_its_logits_is_done(family):
    overrides: dict[str, Any] = {"final_logit_softcapping": 3.0} if family == "gemma2" else {}
    policy = tiny_policy(family, **overrides)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        whole = tiny_model(family, **overrides)(input_ids=ids).logits
        ours = policy.logits(policy.backbone(input_ids=ids).last_hidden_state)
        bare = policy.head(policy.backbone(input_ids=ids).last_hidden_state)
    torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-5)
    assert (float((bare - whole).abs().max()) > 0.1) == (family in ("granite", "cohere", "gemma2"))


@pytest.mark.parametrize("plain", [False, True])
def test_exactly_the_logits_that_predict_a_completion_get_a_gradient(plain):
    # B14: prompt of 3, completion of 2: positions 2 and 3 of the sequence.
    policy = exact_policy("llama")
    rows = []

    class Spy(nn.Module):
        def forward(self, hidden):
            rows.append(hidden.detach().clone())
            return policy.base.lm_head(hidden)

    policy.head = Spy()
    batch = make_batch([(3, [2])])
    policy.score(batch, temperature=1.0, plain=plain)
    sequence = torch.tensor([[*batch.prompts[0], *batch.ids[0].tolist()]])
    hidden = exact_model("llama").model(input_ids=sequence).last_hidden_state
    torch.testing.assert_close(torch.cat(rows), hidden[0, 2:4], rtol=1e-9, atol=1e-11)


def test_masked_tokens_are_zero_and_get_no_gradient():
    policy = exact_policy("llama")
    batch = make_batch([(3, [4, 2])])
    mask = batch.mask.clone()
    mask[0, 1] = mask[1, :] = False
    full = policy.score(batch, temperature=1.0)
    part = policy.score(replace(batch, mask=mask), temperature=1.0)
    torch.testing.assert_close(part.logprobs, full.logprobs * mask, rtol=1e-9, atol=1e-12)
    assert_equal_gradients(
        gradients(policy.base, part.logprobs.sum()), gradients(policy.base, (full.logprobs * mask).sum())
    )


@pytest.mark.parametrize("family", ["llama", "mistral_windowed"])
def test_rows_without_a_token_that_counts_are_zero_and_still_in_the_graph(family):
    # B12: such a row can fill a micro-batch of its own.
    policy = tiny_policy(family)
    batch = make_batch([(3, [2])])
    scores = policy.score(replace(batch, mask=torch.zeros_like(batch.mask)), temperature=1.0)
    assert scores.logprobs.tolist() == [[0.0, 0.0]]
    assert scores.entropy.tolist() == [[0.0, 0.0]]
    scores.logprobs.sum().backward()
    assert all(param.grad is None or not param.grad.any() for _, param in policy.trainable())


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_logprobs_do_not_depend_on_padding(family):
    # B27, with learned absolute positions and without.
    policy = tiny_policy(family)
    short = make_batch([(4, [3])])
    row = Row(0, _completion(short.ids[0].tolist()), 0.0)
    with torch.no_grad():
        alone = policy.score(short, temperature=1.0, plain=True).logprobs[0]
        for extra in (1, 2, 16):
            long = Row(1, _completion([7] * (3 + extra)), 0.0)
            both = collate([short.prompts[0], (9,) * 11], [row, long])
            for plain in (True, False):
                scores = policy.score(both, temperature=1.0, plain=plain).logprobs
                torch.testing.assert_close(scores[0, :3], alone, rtol=0, atol=1e-5)
                assert not scores[0, 3:].any()


def _completion(ids):
    return Completion(ids=tuple(ids), sampler_logprobs=(-1.0,) * len(ids), finish_reason="stop", version=0)


@pytest.mark.parametrize("plain", [False, True])
def test_the_size_of_a_chunk_of_logits_changes_nothing(plain, monkeypatch):
    policy = exact_policy("qwen2")
    batch = make_batch([(5, [9, 1, 6]), (2, [4])])

    def run():
        scores = policy.score(batch, temperature=0.8, entropy_gradient=True, plain=plain)
        return scores, gradients(policy.base, (scores.logprobs + 0.3 * scores.entropy).square().sum())

    whole, grads = run()
    for tokens in (1, 3, 19):
        monkeypatch.setattr(logprobs, "CHUNK_BYTES", tokens * 4 * 259)
        scores, chunked = run()
        torch.testing.assert_close(scores.logprobs, whole.logprobs, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(scores.entropy, whole.entropy, rtol=1e-12, atol=1e-12)
        assert_equal_gradients(chunked, grads, 1e-11)


@pytest.mark.parametrize("with_gradient", [False, True])
def test_no_tensor_over_rows_time_and_vocabulary_exists(with_gradient, monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_BYTES", 7 * 4 * 259)
    policy = tiny_policy()
    batch = make_batch([(5, [20] * 8)])
    formed, kept = [], []
    policy.base.lm_head.register_forward_hook(lambda module, inputs, output: formed.append(len(output)))

    def note(tensor):
        kept.append(tensor.numel() if tensor.shape[-1] == 259 else 0)
        return tensor

    with torch.set_grad_enabled(with_gradient), torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        scores = policy.score(batch, temperature=1.0, entropy_gradient=True)
    assert sum(formed) == 160
    assert max(formed) == 7
    if with_gradient:
        # Until the backward pass no logits are kept at all; there they are formed again, in chunks.
        assert max(kept) == 0
        (scores.logprobs + scores.entropy).sum().backward()
        assert sum(formed) == 320
        assert max(formed) == 7


@pytest.mark.parametrize("family", [*SHARING, *PLAIN])
def test_gradient_checkpointing_changes_no_gradient_and_no_flag(family):
    batch = make_batch([(5, [4, 1, 6]), (2, [3])])
    results = []
    for recomputes in (False, True):
        policy = tiny_policy(family)
        if recomputes:
            enable_gradient_checkpointing(policy)
        flags = [module.training for module in policy.base.modules()]
        assert not any(flags)
        scores = policy.score(batch, temperature=1.0)
        results.append(gradients(policy.base, scores.logprobs.square().sum()))
        assert [module.training for module in policy.base.modules()] == flags
    assert_equal_gradients(results[1], results[0], 1e-6)


def test_gradient_checkpointing_keeps_fewer_activations():
    def kept_bytes(recomputes):
        policy = tiny_policy(num_hidden_layers=4)
        if recomputes:
            enable_gradient_checkpointing(policy)
        total = 0

        def note(tensor):
            nonlocal total
            total += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            policy.score(make_batch([(30, [20] * 4)]), temperature=1.0)
        return total

    assert kept_bytes(True) < 0.4 * kept_bytes(False)


def test_layers_that_cannot_be_recomputed_are_named():
    policy = tiny_policy()
    policy.base = cast(Any, nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="gradient_checkpointing is on, but Linear has no layers"):
        enable_gradient_checkpointing(policy)


@pytest.mark.parametrize(
    ("family", "dropouts"),
    [
        ("llama", {"attention_dropout": 0.5}),
        ("granite", {"attention_dropout": 0.5}),
        ("gpt2", {"attn_pdrop": 0.5, "embd_pdrop": 0.5, "resid_pdrop": 0.5}),
        ("mistral_windowed", {"attention_dropout": 0.5}),
    ],
)
@pytest.mark.parametrize("recomputes", [False, True])
def test_no_pass_has_dropout(family, dropouts, recomputes):
    # B29: a model that comes in training mode and with dropout in its configuration.
    without = tiny_policy(family)
    policy = Policy(tiny_model(family, **dropouts).train(), tiny_tokenizer(), max_tokens=256)
    if recomputes:
        enable_gradient_checkpointing(policy)
    batch = make_batch([(5, [4, 1, 6])])
    for plain in (False, True):
        scores = policy.score(batch, temperature=1.0, plain=plain)
        torch.testing.assert_close(
            scores.logprobs, without.score(batch, temperature=1.0, plain=plain).logprobs
        )
        ours = gradients(policy.base, scores.logprobs.sum())
        again = gradients(policy.base, policy.score(batch, temperature=1.0, plain=plain).logprobs.sum())
        assert_equal_gradients(ours, again, 1e-6)


def test_autocast_computes_low_and_gives_float32():
    model = tiny_model()
    full = Policy(tiny_model(), tiny_tokenizer(), max_tokens=256)
    low = Policy(model, tiny_tokenizer(), max_tokens=256, autocast=torch.bfloat16)
    batch = make_batch([(5, [4, 1, 6])])
    scores, expected = low.score(batch, temperature=1.0), full.score(batch, temperature=1.0)
    assert scores.logprobs.dtype == scores.entropy.dtype == torch.float32
    assert 1e-4 < float((scores.logprobs - expected.logprobs).detach().abs().max()) < 0.3
    scores.logprobs.sum().backward()
    kinds = {(param.dtype, param.grad is not None and param.grad.dtype) for _, param in low.trainable()}
    assert kinds == {(torch.float32, torch.float32)}
    logits = low.logits(torch.randn(3, 32))
    assert logits.dtype == torch.float32


def test_other_weights_are_used_inside_and_gone_outside():
    policy, other = tiny_policy(), tiny_policy(seed=1)
    batch = make_batch([(5, [4, 1])])
    before = policy.snapshot()
    with torch.no_grad():
        own, foreign = (p.score(batch, temperature=1.0).logprobs for p in (policy, other))
        with policy.using(other.snapshot()):
            torch.testing.assert_close(policy.score(batch, temperature=1.0).logprobs, foreign)
            with policy.using(before):
                torch.testing.assert_close(policy.score(batch, temperature=1.0).logprobs, own)
            torch.testing.assert_close(policy.score(batch, temperature=1.0).logprobs, foreign)
        torch.testing.assert_close(policy.score(batch, temperature=1.0).logprobs, own)
        with policy.using(None):
            torch.testing.assert_close(policy.score(batch, temperature=1.0).logprobs, own)


def test_weights_come_back_to_the_bit_when_the_body_raises():
    policy = tiny_policy()
    before, places = policy.snapshot(), [param.data_ptr() for _, param in policy.trainable()]
    with pytest.raises(KeyError), policy.using(tiny_policy(seed=1).snapshot()):
        raise KeyError("out of the blue")
    assert all(torch.equal(param, before[name]) for name, param in policy.trainable())
    assert [param.data_ptr() for _, param in policy.trainable()] == places


def test_weights_with_other_names_are_refused():
    policy = tiny_policy()
    weights = policy.snapshot()
    weights["surplus"] = weights.pop("model.norm.weight")
    with pytest.raises(ModelError, match=r"'model\.norm\.weight', 'surplus'"), policy.using(weights):
        pass


def test_weights_of_another_shape_are_refused_and_nothing_is_swapped():
    policy = tiny_policy()
    before = policy.snapshot()
    weights = policy.snapshot()
    weights["model.norm.weight"] = torch.ones(31)
    with pytest.raises(ModelError, match=r"model\.norm\.weight.*\(31,\).*\(32,\)"), policy.using(weights):
        pass
    assert all(torch.equal(param, before[name]) for name, param in policy.trainable())


def test_a_snapshot_does_not_follow_later_steps():
    policy = tiny_policy()
    snapshot = policy.snapshot()
    copies = {name: tensor.clone() for name, tensor in snapshot.items()}
    with torch.no_grad():
        for _, param in policy.trainable():
            param.add_(1.0)
    assert all(torch.equal(snapshot[name], copies[name]) for name in copies)
    assert not any(tensor.requires_grad for tensor in snapshot.values())


def test_a_tied_head_is_one_parameter():
    names = [name for name, _ in tiny_policy("llama").trainable()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_the_whole_path_agrees_with_the_model_at_every_temperature():
    policy, reference = exact_policy("gpt2"), exact_model("gpt2")
    batch = make_batch([(3, [2, 5])])
    for temperature in (0.3, 1.0, 2.5):
        logprobs_, entropy = naive_scores(reference, batch, temperature)
        scores = policy.score(batch, temperature=temperature)
        torch.testing.assert_close(scores.logprobs, logprobs_, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(scores.entropy, entropy, rtol=1e-10, atol=1e-12)
