"""Axes: N rows, E features."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

from muster.adapters import add_lora
from muster.lean import ACTIVATIONS, slim
from naive import exact_model
from tiny import tiny_model

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma")


def gradients(model: nn.Module, work: Callable[[], Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    work().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def loss_of(model: nn.Module, ids: Tensor, weights: Tensor) -> Callable[[], Tensor]:
    return lambda: (model(input_ids=ids, use_cache=False).logits.log_softmax(-1) * weights).sum()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_lean_model_has_the_same_logits_and_gradients_as_its_own_code(family: str, with_adapter: bool):
    torch.manual_seed(1)
    model: Any = exact_model(family)
    if with_adapter:
        model = add_lora(model, rank=3, alpha=5.0, targets=["q_proj", "gate_proj", "down_proj"], seed=2)
        for name, param in model.named_parameters():
            if "lora_" in name:
                nn.init.normal_(param, std=0.3)
        model.double()
    ids = torch.randint(3, 250, (2, 9))
    weights = torch.randn(2, 9, model.config.vocab_size, dtype=torch.float64)
    work = loss_of(model, ids, weights)
    expected_loss, expected = work().detach(), gradients(model, work)
    assert slim(model) > 0
    assert torch.allclose(work(), expected_loss, rtol=1e-12)
    found = gradients(model, work)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-9, atol=1e-10), name


def test_every_module_of_a_llama_is_known_and_none_twice():
    model = tiny_model("llama")
    layers = model.config.num_hidden_layers
    # Two norms, an MLP and seven linear layers each; the last norm, the head and the embedding.
    assert slim(model) == 10 * layers + 3
    assert slim(model) == 0
    adapted = add_lora(tiny_model("llama"), rank=2, alpha=4.0, targets=["q_proj", "up_proj"], seed=0)
    # An adapter counts for its layer, and its two matrices are linear layers too.
    assert slim(adapted) == (10 + 2 * 2) * layers + 3


def test_a_model_in_bfloat16_stays_as_it_is():
    assert slim(tiny_model("llama", dtype=torch.bfloat16)) == 0


def test_of_other_models_only_what_is_known_is_changed():
    model = tiny_model("gpt2")
    assert slim(model) == 3
    changed = [name for name, module in model.named_modules() if "forward" in vars(module)]
    assert changed == ["transformer.wte", "transformer.wpe", "lm_head"]


def test_a_module_that_computes_something_else_keeps_its_own_forward():
    class DoubledRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8))
            self.eps = 1e-6

        def forward(self, hidden: Tensor) -> Tensor:
            return 2 * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps) * self.weight

    assert slim(nn.Sequential(DoubledRMSNorm())) == 0


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_the_gradient_through_an_activation_is_that_of_finite_differences(name: str):
    activation = ACTIVATIONS[name]
    points = torch.linspace(-6, 6, 41, dtype=torch.float64)
    step = 1e-6
    slope = (activation.forward(points + step) - activation.forward(points - step)) / (2 * step)
    assert torch.allclose(activation.backward(torch.ones_like(points), points), slope, atol=1e-8)


def test_a_copy_of_a_lean_model_computes_with_its_own_weights():
    model = tiny_model("llama")
    slim(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for param in other.parameters():
            param.zero_()
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        assert other(input_ids=ids).logits.abs().max() == 0
        assert model(input_ids=ids).logits.abs().max() > 0


def test_a_fresh_adapter_costs_nothing_and_changes_no_bit():
    model = add_lora(tiny_model("llama"), rank=2, alpha=4.0, targets=["q_proj"], seed=0)
    slim(model)
    layer: Any = next(module for module in model.modules() if isinstance(module, LoraLinear))
    hidden = torch.randn(4, layer.get_base_layer().weight.shape[1])
    with torch.no_grad():
        expected = F.linear(hidden, layer.get_base_layer().weight)
        assert torch.equal(layer(hidden), expected)
        layer.lora_B["default"].weight.fill_(0.5)
        assert not torch.equal(layer(hidden), expected)
        layer.enable_adapters(False)
        assert torch.equal(layer(hidden), expected)


def test_in_another_precision_a_module_computes_as_it_did():
    model = tiny_model("llama")
    before = copy.deepcopy(model)
    slim(model)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(input_ids=ids).logits, before(input_ids=ids).logits)
