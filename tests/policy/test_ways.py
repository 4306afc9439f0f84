"""Axes: N rows, I inputs, O outputs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from muster import ways
from muster.adapters import add_lora
from muster.engines.products import linear_layers, own_weight
from muster.errors import CheckpointError
from muster.frozen import MANY_ROWS, Ways, by_blas, by_onednn, has_onednn
from muster.lean import slim
from muster.policy import Policy
from tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.skipif(not has_onednn(), reason="this torch was built without oneDNN")


@pytest.mark.parametrize("num_rows", [1, 7, MANY_ROWS])
def test_both_libraries_give_the_product_and_its_gradient(num_rows: int):
    random = torch.Generator().manual_seed(1)
    weight, rows = torch.randn(24, 16, generator=random), torch.randn(num_rows, 16, generator=random)
    grads = torch.randn(num_rows, 24, generator=random)
    expected = rows.double() @ weight.double().t()
    of_rows = grads.double() @ weight.double()
    for way in (by_blas, by_onednn):
        assert (way(rows, weight) - expected).abs().max() < 1e-5
        assert (way(grads, weight.t()) - of_rows).abs().max() < 1e-5


def gradients(model: Any, ids: Tensor, weights: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (model(input_ids=ids, use_cache=False).logits.log_softmax(-1) * weights).sum().backward()
    return {name: param.grad.clone() for name, param in model.named_parameters()}


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma", "gpt2"])
def test_a_model_trained_by_onednn_has_the_gradients_of_float64(family: str):
    model: Any = tiny_model(family)
    ids = torch.randint(3, 250, (4, MANY_ROWS // 32))
    weights = torch.randn(*ids.shape, model.config.vocab_size)
    exact = tiny_model(family).double()
    exact.load_state_dict(model.state_dict())
    expected = gradients(exact, ids, weights.double())
    slim(model, Ways(onednn=True))
    found = gradients(model, ids, weights)
    for name, value in expected.items():
        assert (found[name] - value).abs().max() <= 1e-4 * value.abs().max() + 1e-6, name


def test_products_of_other_precisions_stay_where_they_are():
    rows, weight = torch.randn(3, 4).double(), torch.randn(5, 4).double()
    assert torch.equal(Ways(onednn=True).product(rows, weight), rows @ weight.t())


def test_the_way_that_takes_less_time_by_a_margin_is_chosen():
    shapes = [[torch.ones(8, 4)] * 3, [torch.ones(4, 8)]]

    def slow(x: Tensor, weight: Tensor) -> Tensor:
        for _ in range(30):
            by_blas(x, weight)
        return by_blas(x, weight)

    assert ways.is_faster(shapes, by_blas, slow)
    assert not ways.is_faster(shapes, slow, by_blas)


def test_what_is_measured_once_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path))
    monkeypatch.setattr(ways, "LARGE", 1)
    monkeypatch.setattr(ways, "NUM_ROWS", 2)
    layers = linear_layers(tiny_model("llama"))
    answers = [True]
    monkeypatch.setattr(ways, "is_faster", lambda *_: answers.pop())
    assert ways.should_use_onednn(layers)
    assert ways.should_use_onednn(layers)  # a second measurement would find no answer
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["training"]


def policy() -> Policy:
    return Policy(tiny_model("llama"), tiny_tokenizer(), max_tokens=64)


def test_nothing_is_measured_where_products_are_named_or_computed_in_half(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ways, "LARGE", 1)
    monkeypatch.setattr(ways, "recalled", lambda *_, **__: True)
    found = policy()
    ways.choose(found, may_measure=True)
    assert found.ways.onednn
    ways.choose(found, may_measure=False)
    assert not found.ways.onednn
    found.autocast = torch.bfloat16
    ways.choose(found, may_measure=True)
    assert not found.ways.onednn


def test_small_models_and_those_in_float64_are_not_measured():
    assert not ways.should_use_onednn(linear_layers(tiny_model("llama")))
    large = nn.ModuleList([nn.Linear(2048, 2048, dtype=torch.float64)])
    assert not ways.should_use_onednn(linear_layers(large))


def test_a_checkpoint_says_how_its_run_multiplied(monkeypatch: pytest.MonkeyPatch):
    assert [ways.restored("lays_out_frozen", value) for value in (None, False, True)] == [False, False, True]
    with monkeypatch.context() as patch:
        patch.setattr(ways, "has_onednn", lambda: False)
        assert not ways.restored("trains_by_onednn", False)
        with pytest.raises(CheckpointError, match="this torch was built without it"):
            ways.restored("trains_by_onednn", True)
    with pytest.raises(CheckpointError, match="trains_by_onednn = 'yes' instead of true or false"):
        ways.restored("trains_by_onednn", "yes")


def adapted() -> Any:
    return add_lora(tiny_model("llama"), rank=3, alpha=5.0, targets=["q_proj"], seed=2)


def test_frozen_layers_are_laid_out_where_it_pays_and_there_is_room(monkeypatch: pytest.MonkeyPatch):
    layers = linear_layers(adapted())
    assert not ways.should_lay_out(layers)  # too small to gain
    monkeypatch.setattr(ways, "LARGE", 1)
    frozen = sum(own_weight(layer).nbytes for layer in layers)  # type: ignore[union-attr]
    monkeypatch.setattr(ways, "available_bytes", lambda _: int(2 * frozen / ways.SHARE))
    assert ways.should_lay_out(layers)
    monkeypatch.setattr(ways, "available_bytes", lambda _: int(2 * frozen / ways.SHARE) - 8)
    assert not ways.should_lay_out(layers)
    assert not ways.should_lay_out(linear_layers(tiny_model("llama")))  # all of it is trained
