"""Weights in few bits: their values, their gradient, and one policy in sampling and in training."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from muster.adapters import add_lora
from muster.config import from_mapping
from muster.errors import ConfigError
from muster.loop import train
from muster.policy import Policy, enable_gradient_checkpointing
from muster.quantized import KINDS, Int8, QuantizedLinear, quantize
from tiny import SHARING, tiny_model, tiny_tokenizer
from toy_run import number, toy_batch, toy_run

CPU = torch.device("cpu")
TARGETS = ("q_proj", "v_proj", "gate_proj", "down_proj")

# The 16 values of a 4-bit normal float, as in the appendix of arXiv:2305.14314, to 4 digits.
FOUR_BITS = torch.tensor(
    [
        -1.0,
        -0.6962,
        -0.5251,
        -0.3949,
        -0.2844,
        -0.1848,
        -0.0911,
        0.0,
        0.0796,
        0.1609,
        0.2461,
        0.3379,
        0.4407,
        0.5626,
        0.723,
        1.0,
    ]
)


def quantized_policy(kind: str, family: str = "llama", **overrides) -> Policy:
    model = tiny_model(family, **overrides)
    quantize(model, kind, CPU)
    return Policy(add_lora(model, rank=4, alpha=8, targets=TARGETS, seed=1), tiny_tokenizer(), max_tokens=256)


def stirred(policy: Policy) -> Policy:
    """The policy with an adapter that does something."""
    generator = torch.Generator().manual_seed(5)
    for _, param in policy.trainable():
        param.data.add_(torch.randn(param.shape, generator=generator), alpha=0.05)
    return policy


def gradients_of(policy: Policy) -> dict[str, torch.Tensor]:
    batch = toy_batch(policy)
    policy.score(batch, temperature=1.0).logprobs.mul(batch.advantages[:, None]).sum().backward()
    found = {name: param.grad for name, param in policy.trainable() if param.grad is not None}
    assert len(found) == len(list(policy.trainable()))
    return found


def test_each_block_of_64_weights_is_its_scale_times_one_of_16_values():
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    whole = KINDS["nf4"](weight).whole()
    scale = weight.abs().amax(dim=1, keepdim=True)
    nearest = FOUR_BITS[(weight / scale)[..., None].sub(FOUR_BITS).abs().argmin(-1)]
    # The scales themselves are kept in 8 bits.
    assert (whole / scale - nearest).abs().max() < 0.03


def test_int8_rounds_each_row_to_127_steps():
    weight = torch.tensor([[1.0, -0.5, 0.25, 0.004], [0.0, 2.0, -2.0, 0.5]])
    stored = Int8.of(weight)
    assert stored.codes.tolist() == [[127, -64, 32, 1], [0, 127, -127, 32]]
    assert torch.allclose(stored.whole(), torch.tensor([[127.0], [63.5]]).reciprocal() * stored.codes)
    assert (stored.whole() - weight).abs().max() <= 0.5 * 2 / 127 + 1e-7


@pytest.mark.parametrize("kind", KINDS)
def test_the_product_and_its_gradient_are_those_of_the_whole_weight(kind):
    generator = torch.Generator().manual_seed(1)
    stored = KINDS[kind](torch.randn(48, 64, generator=generator))
    layer = QuantizedLinear(stored, torch.randn(48, generator=generator))
    hidden = torch.randn(5, 64, generator=generator).requires_grad_()
    plain = hidden.detach().clone().requires_grad_()
    out, expected = layer(hidden), F.linear(plain, stored.whole(), layer.bias)
    assert torch.equal(out, expected)
    assert torch.allclose(torch.cat([layer(hidden[:2]), layer(hidden[2:])]), out, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    assert hidden.grad is not None
    assert plain.grad is not None
    assert torch.allclose(hidden.grad, plain.grad, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(hidden).dtype == torch.bfloat16


def test_a_graph_keeps_no_whole_weight():
    layer = QuantizedLinear(KINDS["nf4"](torch.randn(256, 256)), None)
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(torch.randn(3, 256, requires_grad=True))
    assert max(kept, default=0) < 256 * 256 / 4


@pytest.mark.parametrize("kind", KINDS)
def test_linear_layers_but_the_head_are_quantised_and_all_else_is_float32(kind):
    model = tiny_model("qwen2", dtype=torch.bfloat16)
    whole = copy.deepcopy(model).float()
    says = quantize(model, kind, CPU)
    assert says.startswith(f"14 linear layers in {kind}")
    layers = {name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    assert all(name.endswith("_proj") for name in layers)
    assert len(layers) == 14
    assert type(model.get_output_embeddings()) is nn.Linear
    assert {param.dtype for param in model.parameters()} == {torch.float32}
    # Quantised from float32, whatever the weights were stored in.
    for name in layers:
        layer, before = model.get_submodule(name), whole.get_submodule(name)
        assert isinstance(layer, QuantizedLinear)
        assert isinstance(before, nn.Linear)
        assert torch.equal(layer.weight, KINDS[kind](before.weight.detach()).whole())
        assert before.bias is None or torch.equal(layer.bias, before.bias)


@pytest.mark.parametrize("family", [family for family in SHARING if family != "gpt2"])
@pytest.mark.parametrize("kind", KINDS)
def test_shared_prompts_give_what_padded_rows_give(kind, family):
    policy = stirred(quantized_policy(kind, family))
    assert policy.packs
    batch = toy_batch(policy)
    with torch.no_grad():
        packed, plain = (policy.score(batch, temperature=1.0, plain=plain) for plain in (False, True))
    assert (packed.logprobs - plain.logprobs).abs().max() < 2e-5


@pytest.mark.parametrize("kind", KINDS)
def test_sampler_and_trainer_are_one_policy_and_the_adapter_learns(kind):
    policy = quantized_policy(kind)
    before = policy.snapshot()
    digest = policy.quantized
    run = toy_run(policy, objective={"kl_coef": 0.1}, lr=1e-2)
    for report in train(run):
        assert number(report, "sampling/mismatch") < 1e-5
    assert any(not torch.equal(param, before[name]) for name, param in policy.trainable())
    assert run.reference is not None
    assert Policy(policy.model, policy.tokenizer, max_tokens=256).quantized == digest


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_checkpointed_layers_have_the_same_gradient(kind):
    def made() -> Policy:
        if kind is not None:
            return stirred(quantized_policy(kind))
        model = add_lora(tiny_model(), rank=4, alpha=8, targets=TARGETS, seed=1)
        return stirred(Policy(model, tiny_tokenizer(), max_tokens=256))

    plain, checkpointed = made(), made()
    enable_gradient_checkpointing(checkpointed)
    expected, found = gradients_of(plain), gradients_of(checkpointed)
    assert found.keys() == expected.keys()
    assert max(float(grad.abs().max()) for grad in expected.values()) > 1e-3
    for name, grad in expected.items():
        assert torch.allclose(found[name], grad, rtol=1e-5, atol=1e-7), name


def test_a_digest_tells_two_bases_apart():
    one, two = quantized_policy("nf4"), quantized_policy("nf4", seed=1)
    assert one.quantized == quantized_policy("nf4").quantized
    assert len({one.quantized, two.quantized, quantized_policy("int8").quantized}) == 3
    assert Policy(tiny_model(), tiny_tokenizer(), max_tokens=64).quantized is None


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(ConfigError, match=r"model\.quantize is 'nf4', but this gpt2 model has no linear"):
        quantize(tiny_model("gpt2"), "nf4", CPU)


def test_full_weights_of_few_bits_are_refused():
    with pytest.raises(ConfigError, match=r'model\.quantize is "nf4"; allowed: with an adapter only'):
        from_mapping(
            {
                "model": {"path": "m", "quantize": "nf4"},
                "data": {"path": "d"},
                "reward": {"use": "char_count"},
            }
        )
