import warnings
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    LlamaConfig,
    NemotronConfig,
    OPTConfig,
    PreTrainedModel,
)

from muster.attention import causal_attention, length_buckets, unpackable_because
from muster.batch import Batch
from muster.errors import ModelError
from muster.policy import Policy
from naive import assert_equal_gradients, exact_model, exact_policy, gradients, make_batch, naive_scores
from tiny import COMMON, PLAIN, SHARING, tiny_model, tiny_policy, tiny_tokenizer

# Several groups in one row: two, sixteen, one and three completions; completions of one token; a
# group of equal lengths; prompts of one token and of many.
GROUPS = [
    (7, [5, 1]),
    (1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1, 2, 13, 4, 1, 6]),
    (19, [4]),
    (3, [4, 4, 4]),
    (2, [1, 1]),
]


def _weighted(scores: torch.Tensor, batch: Batch) -> torch.Tensor:
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(9), dtype=scores.dtype)
    return (scores * weights * batch.mask).sum()


@pytest.mark.parametrize("family", SHARING)
def test_shared_prompts_change_neither_logprobs_nor_gradients(family):
    # Cohere rotates queries and keys in float32 whatever the weights are.
    grad_rtol = 1e-6 if family == "cohere" else 1e-9
    policy = exact_policy(family)
    reference = exact_model(family)
    batch = make_batch(GROUPS)
    assert policy.packs

    packed = policy.score(batch, temperature=0.7, entropy_gradient=True)
    plain = policy.score(batch, temperature=0.7, entropy_gradient=True, plain=True)
    logprobs, entropy = naive_scores(reference, batch, 0.7)

    assert float(logprobs.detach().min()) < -5  # The model is no constant.
    for scores in (packed, plain):
        torch.testing.assert_close(scores.logprobs, logprobs, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(scores.entropy, entropy, rtol=1e-9, atol=1e-11)
    naive = gradients(reference, _weighted(logprobs, batch) + _weighted(entropy.square(), batch))
    for scores in (packed, plain):
        loss = _weighted(scores.logprobs, batch) + _weighted(scores.entropy.square(), batch)
        assert_equal_gradients(gradients(policy.base, loss), naive, grad_rtol)


@pytest.mark.parametrize("family", PLAIN)
def test_models_that_cannot_share_agree_with_the_model_itself(family):
    # gemma2's own attention takes its softmax in float32 whatever the weights are.
    rtol = 1e-9 if family == "mistral_windowed" else 1e-5
    policy = exact_policy(family)
    reference = exact_model(family)
    batch = make_batch([(30, [5, 1, 9]), (3, [4, 20])])
    assert not policy.packs

    scores = policy.score(batch, temperature=1.3)
    logprobs, entropy = naive_scores(reference, batch, 1.3)

    torch.testing.assert_close(scores.logprobs, logprobs, rtol=rtol, atol=rtol)
    torch.testing.assert_close(scores.entropy, entropy, rtol=rtol, atol=rtol)
    assert_equal_gradients(
        gradients(policy.base, _weighted(scores.logprobs, batch)),
        gradients(reference, _weighted(logprobs, batch)),
        rtol,
    )


def test_entropy_carries_a_gradient_only_where_it_is_asked_for():
    policy = tiny_policy(dtype=torch.float64)
    scores = policy.score(make_batch([(3, [2, 4])]), temperature=1.0)
    assert scores.logprobs.requires_grad
    assert not scores.entropy.requires_grad


def test_no_square_over_the_row_is_ever_built():
    # 16 completions of 20 tokens after a prompt of 30: a square mask would hold 349 x 349 entries.
    policy = tiny_policy()
    batch = make_batch([(30, [20] * 16)])
    largest = 0

    def note(tensor):
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        policy.states(batch)
    # The largest: keys of every completion, its prompt's included, or the MLP's activations.
    assert largest <= 16 * 4 * 50 * 8 < 349 * 349


def test_completions_are_padded_to_neighbours_of_about_their_length():
    assert length_buckets([]) == []
    assert length_buckets([0, 0]) == []
    assert length_buckets([64] * 16) == [(64,) * 16]
    assert length_buckets([0, 3, 8, 9, 40, 50, 51]) == [(0, 3, 8), (9,), (40, 50), (51,)]
    # Also where they don't rise, as in a layout that somebody else built.
    assert length_buckets([9, 3, 12]) == [(9,), (3,), (12,)]


@given(st.lists(st.integers(0, 300), max_size=20))
def test_no_completion_is_padded_by_much(lengths):
    buckets = length_buckets(sorted(lengths))
    assert [length for bucket in buckets for length in bucket if length] == sorted(filter(None, lengths))
    assert all(bucket[-1] - bucket[0] <= max(8, bucket[0] / 4) for bucket in buckets)


def test_sizes_of_keys_and_values_may_differ():
    # Multi-head latent attention: keys of 16, values of 12.
    config = DeepseekV3Config(
        **{**COMMON, "num_key_value_heads": 4},
        vocab_size=259,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        first_k_dense_replace=2,
    )
    _assert_shares(config)


def test_learned_positions_with_an_offset_are_shared():
    _assert_shares(
        OPTConfig(
            hidden_size=32,
            ffn_dim=48,
            word_embed_proj_dim=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=259,
            dropout=0.5,
        )
    )


def _assert_shares(config):
    model = _build(config)
    batch = make_batch([(5, [3, 1, 4]), (2, [2, 2])])
    with torch.no_grad():
        logprobs, _ = naive_scores(model, batch)
        policy = Policy(model, tiny_tokenizer(), max_tokens=64)
        assert policy.plain_because is None
        scores = policy.score(batch, temperature=1.0)
    torch.testing.assert_close(scores.logprobs, logprobs, rtol=1e-5, atol=1e-5)


def _build(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for param in model.parameters():
        if param.ndim > 1:
            param.data.normal_(0.0, 0.2)
    return model


def test_a_model_that_only_promises_to_use_the_interface_is_computed_plainly():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings: dict[str, Any] = dict(COMMON)
        model = _build(NemotronConfig(vocab_size=259, **settings))
    policy = Policy(model, tiny_tokenizer(), max_tokens=64)
    assert policy.plain_because is not None
    assert "0 times instead of once each" in policy.plain_because
    batch = make_batch([(5, [3, 1])])
    with torch.no_grad():
        logprobs, _ = naive_scores(model, batch)
        scores = policy.score(batch, temperature=1.0)
    torch.testing.assert_close(scores.logprobs, logprobs, rtol=1e-5, atol=1e-5)


def test_a_window_as_long_as_the_longest_row_hides_nothing():
    wide = tiny_policy("mistral", dtype=torch.float64, sliding_window=40, max_tokens=40)
    assert wide.packs
    reference = exact_model("mistral", sliding_window=40)
    batch = make_batch([(30, [10, 4, 10])])
    logprobs, _ = naive_scores(reference, batch)
    torch.testing.assert_close(wide.score(batch, temperature=1.0).logprobs, logprobs, rtol=1e-9, atol=1e-11)
    narrow = tiny_policy("mistral", sliding_window=40, max_tokens=41)
    assert narrow.plain_because == "it attends through a sliding window of 40 tokens, shorter than 41"


def test_why_a_model_cannot_share_is_said():
    assert "attn_logit_softcapping" in str(tiny_policy("gemma2").plain_because)
    settings: dict[str, Any] = {"layer_types": ["full_attention", "linear_attention"]}
    odd = LlamaConfig(num_hidden_layers=2, **settings)
    assert unpackable_because(odd, 64, True) == "it has layers of kind linear_attention"
    assert "attention interface" in str(unpackable_because(LlamaConfig(), 64, False))
    switched_off = Policy(tiny_model(), tiny_tokenizer(), max_tokens=64, pack_prefixes=False)
    assert switched_off.plain_because == "packing is switched off"


def test_a_model_without_a_head_is_refused():
    headless = cast(PreTrainedModel, tiny_model().base_model)
    with pytest.raises(ModelError, match="LlamaModel is not a language-model head"):
        Policy(headless, tiny_tokenizer(), max_tokens=64)


def test_ordinary_calls_of_a_policys_model_keep_working():
    policy = tiny_policy(dtype=torch.float64)
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 2]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    ours = policy.base(input_ids=ids, attention_mask=mask).logits
    theirs = exact_model("llama")(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_key_heads_of_their_own_change_neither_attention_nor_its_gradients():
    generator = torch.Generator().manual_seed(4)
    shapes = ((1, 6, 9, 8), (1, 2, 9, 8), (1, 2, 9, 5))
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    upstream = torch.randn(1, 6, 9, 5, generator=generator, dtype=torch.float64)
    found = []
    for repeats in (False, True):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        output = causal_attention(leaves[0], leaves[1], leaves[2], 0.3, repeats=repeats)
        found.append([output, *torch.autograd.grad(output, leaves, upstream)])
    for mine, other in zip(*found, strict=True):
        assert torch.allclose(mine, other, rtol=1e-10, atol=1e-12)
