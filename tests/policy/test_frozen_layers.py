"""Axes: N rows, E features, V vocabulary."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from muster.adapters import add_lora
from muster.engines.products import linear_layers, replaced
from muster.frozen import Product, Ways, has_onednn
from muster.lean import slim
from tiny import tiny_model

pytestmark = pytest.mark.skipif(not has_onednn(), reason="this torch was built without oneDNN")


def adapted(targets: list[str]) -> Any:
    torch.manual_seed(3)
    model: Any = add_lora(tiny_model("llama"), rank=3, alpha=5.0, targets=targets, seed=2)
    for name, param in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(param, std=0.3)
    return model


def gradients(model: nn.Module, ids: Tensor, weights: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (model(input_ids=ids, use_cache=False).logits.log_softmax(-1) * weights).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("targets", [["q_proj", "gate_proj", "down_proj"], ["v_proj"]])
def test_copies_of_frozen_weights_give_the_gradients_of_the_weights(targets: list[str]):
    model = adapted(targets)
    ids = torch.randint(3, 250, (2, 9))
    weights = torch.randn(2, 9, model.config.vocab_size)
    expected = gradients(model, ids, weights)
    ways = Ways(copies_frozen=True)
    slim(model, ways)
    found = gradients(model, ids, weights)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-3, atol=1e-4 * float(value.abs().max())), name


def product_of(weight: Tensor) -> tuple[Product, nn.Linear]:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return Product(layer, Ways(copies_frozen=True)), layer


def test_the_product_and_its_gradient_are_those_worked_out_by_hand():
    product, _ = product_of(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert product.forward(torch.tensor([[1.0, -1.0]])).tolist() == [[-1.0, -1.0, -1.0]]
    assert product.backward(torch.tensor([[1.0, 0.0, -1.0]])).tolist() == [[-4.0, -4.0]]


def test_a_weight_that_changes_is_copied_anew():
    product, layer = product_of(torch.ones(3, 2))
    x, grad = torch.ones(1, 2), torch.ones(1, 3)
    assert product.forward(x).tolist() == [[2.0, 2.0, 2.0]]
    assert product.backward(grad).tolist() == [[3.0, 3.0]]
    layer.weight.mul_(2)
    assert product.forward(x).tolist() == [[4.0, 4.0, 4.0]]
    assert product.backward(grad).tolist() == [[6.0, 6.0]]
    layer.weight.data = torch.full((3, 2), 5.0)
    assert product.forward(x).tolist() == [[10.0, 10.0, 10.0]]
    layer.weight = nn.Parameter(torch.full((3, 2), 7.0), requires_grad=False)
    assert product.forward(x).tolist() == [[14.0, 14.0, 14.0]]


def test_a_weight_that_is_trained_is_never_copied():
    product, layer = product_of(torch.ones(3, 2))
    layer.weight.requires_grad_()
    product.forward(torch.ones(1, 2))
    assert product.num_copies == 0
    layer.weight.requires_grad_(False)
    product.forward(torch.ones(1, 2))
    assert product.num_copies == 1


def test_copies_go_when_they_are_switched_off():
    model = adapted(["q_proj"])
    ways = Ways(copies_frozen=True)
    slim(model, ways)
    ids = torch.tensor([[5, 6, 7]])
    held = [value for module in model.modules() for value in products_in(module)]
    with torch.no_grad():
        model(input_ids=ids)
        assert any(product.num_copies for product in held)
        ways.copies_frozen = False
        model(input_ids=ids)
    assert [product.num_copies for product in held] == [0] * len(held)


def products_in(module: nn.Module) -> list[Product]:
    """Those that the module's own forward computes by."""
    forward: Any = vars(module).get("forward")
    inner = getattr(forward.args[1], "args", ()) if forward is not None else ()
    parts = [value for part in inner for value in (part if isinstance(part, tuple) else (part,))]
    return [value for value in parts if isinstance(value, Product)]


def test_a_model_with_copies_can_be_copied_itself():
    model = adapted(["q_proj"])
    slim(model, Ways(copies_frozen=True))
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        other = copy.deepcopy(model)
        assert torch.equal(other(input_ids=ids).logits, expected)
        for param in other.parameters():
            param.zero_()
        assert other(input_ids=ids).logits.abs().max() == 0
        assert torch.equal(model(input_ids=ids).logits, expected)


@pytest.mark.parametrize("kind", ["turned", "laid_out"])
def test_sampling_by_other_products_leaves_the_lean_forwards_in_place(kind: str):
    model = adapted(["q_proj"])
    slim(model)
    before = {name: vars(module).get("forward") for name, module in model.named_modules()}
    assert any(before.values())
    with replaced(linear_layers(model), kind):
        pass
    assert {name: vars(module).get("forward") for name, module in model.named_modules()} == before
