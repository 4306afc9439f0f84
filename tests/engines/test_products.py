import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from muster.engines.base import Sampling
from muster.engines.fused import is_known
from muster.engines.local import LocalEngine
from muster.engines.products import (
    KINDS,
    Choice,
    Seconds,
    choose,
    decide,
    linear_layers,
    measure,
    remembered,
    replaced,
    weight_and_bias,
)
from muster.policy import Policy
from muster.records import Prompt, StreamKey
from naive import exact_model
from tiny import SHARING, tiny_model, tiny_policy, tiny_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own

PROMPTS = [
    Prompt(ids=tuple(range(5 + length, 5 + 2 * length)), key=StreamKey(1, 1, slot, 0))
    for slot, length in enumerate((3, 11, 1, 6))
]
SAMPLING = Sampling(group_size=3, max_tokens=12, stop_ids=frozenset(range(40)))


def _assert_same(ours, theirs, tolerance):
    for group, others in zip(ours, theirs, strict=True):
        for done, other in zip(group, others, strict=True):
            assert done.ids == other.ids
            assert done.sampler_logprobs == pytest.approx(other.sampler_logprobs, abs=tolerance)


def _adapted(family, **settings):
    """A policy with an adapter that changes what the model says."""
    model = exact_model(family)
    targets = ["c_attn", "c_fc", "c_proj"] if family == "gpt2" else ["q_proj", "v_proj", "o_proj", "up_proj"]
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=targets, fan_in_fan_out=family == "gpt2", **settings
    )
    adapted = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(1)
    for name, param in adapted.named_parameters():
        if "lora_" in name:
            param.data = torch.randn(param.shape, generator=generator, dtype=torch.float64) * 0.3
    return Policy(adapted, tiny_tokenizer(), max_tokens=256)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("num_rows", [1, 5, 64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_kind_is_the_product_that_it_stands_for(kind, num_rows, has_bias):
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(24, 40, generator=generator), torch.randn(num_rows, 1, 40, generator=generator)
    bias = torch.randn(24, generator=generator) if has_bias else None
    product = KINDS[kind](weight, bias)
    expected = torch.nn.functional.linear(x, weight, bias)
    assert product(x).shape == expected.shape
    torch.testing.assert_close(product(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(product(x[:, 0]), expected[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", SHARING)
@pytest.mark.parametrize("kind", ["linear", "turned"])
def test_the_short_way_samples_what_the_modules_sample(family, kind):
    policy = (
        tiny_policy(family)
        if family in ("granite", "cohere")
        else Policy(exact_model(family), tiny_tokenizer(), max_tokens=256)
    )
    exact = policy.base.dtype == torch.float64
    plain = LocalEngine(policy).generate(PROMPTS, SAMPLING)
    engine = LocalEngine(policy, max_rows=5, choice=Choice(kind, kind, is_fused=is_known(policy.backbone)))
    _assert_same(engine.generate(PROMPTS, SAMPLING), plain, 1e-9 if exact else 1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma", "gpt2", "mistral_windowed"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_samples_the_same_in_float32(family, kind):
    policy = tiny_policy(family)
    choice = Choice(kind, kind, is_fused=is_known(policy.backbone))
    engine = LocalEngine(policy, choice=choice)
    _assert_same(engine.generate(PROMPTS, SAMPLING), LocalEngine(policy).generate(PROMPTS, SAMPLING), 1e-4)
    # Copies are of the weights as they are now.
    with torch.no_grad():
        for _, param in policy.trainable():
            param.mul_(1.1)
    again = LocalEngine(policy).generate(PROMPTS, SAMPLING)
    _assert_same(engine.generate(PROMPTS, SAMPLING), again, 1e-4)
    engine.load_weights(tiny_policy(family, seed=1).trainable(), 2)
    other = LocalEngine(tiny_policy(family, seed=1)).generate(PROMPTS, SAMPLING)
    _assert_same(engine.generate(PROMPTS, SAMPLING), other, 1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "mistral_windowed"])
@pytest.mark.parametrize("kind", ["linear", "turned"])
def test_an_adapter_is_added_up(family, kind):
    policy = _adapted(family)
    plain = LocalEngine(policy).generate(PROMPTS, SAMPLING)
    choice = Choice(kind, kind, is_fused=is_known(policy.backbone))
    _assert_same(LocalEngine(policy, choice=choice).generate(PROMPTS, SAMPLING), plain, 1e-9)
    unadapted = LocalEngine(Policy(exact_model(family), tiny_tokenizer(), max_tokens=256))
    assert [c.ids for c in plain[1]] != [c.ids for c in unadapted.generate(PROMPTS, SAMPLING)[1]]


def test_an_adapter_that_scales_columns_keeps_its_own_product():
    policy = _adapted("llama", use_dora=True)
    layers = linear_layers(policy.backbone)
    assert all(type(layer) is nn.Linear for layer in layers)
    assert not is_known(policy.backbone)
    plain = LocalEngine(policy).generate(PROMPTS, SAMPLING)
    _assert_same(
        LocalEngine(policy, choice=Choice("turned", "turned")).generate(PROMPTS, SAMPLING), plain, 1e-9
    )


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_layers_are_themselves_again_afterwards(family):
    model = tiny_model(family)
    layers = linear_layers(model)
    assert len(layers) == (15 if family == "llama" else 9)
    weight = layers[0].weight
    assert isinstance(weight, torch.Tensor)
    x = torch.randn(3, weight.shape[family == "llama"])
    before = layers[0](x)
    with replaced(layers, "turned"):
        assert all("forward" in vars(layer) for layer in layers)
        torch.testing.assert_close(layers[0](x), before, rtol=1e-4, atol=1e-5)
    assert not any("forward" in vars(layer) for layer in layers)
    assert torch.equal(layers[0](x), before)
    with replaced(layers, "linear"):
        assert not any("forward" in vars(layer) for layer in layers)


def test_weights_are_those_of_the_outputs_by_the_inputs():
    for family in ("llama", "gpt2"):
        layer = linear_layers(tiny_model(family).base_model)[0]
        weight, bias = weight_and_bias(layer)
        x = torch.randn(2, weight.shape[1])
        torch.testing.assert_close(torch.nn.functional.linear(x, weight, bias), layer(x))


def test_the_choice_follows_from_the_seconds():
    cases = [
        ({"linear": (1.0, 0.0), "turned": (0.95, 0.0), "laid_out": (0.92, 9.0)}, Choice()),
        (
            {"linear": (1.0, 0.0), "turned": (0.5, 0.0), "laid_out": (0.48, 9.0)},
            Choice("turned", "turned", 0),
        ),
        # Copies that cost 9 s and save 0.25 s a token have paid after 36 of them.
        (
            {"linear": (1.0, 0.0), "turned": (0.5, 0.0), "laid_out": (0.25, 9.0)},
            Choice("turned", "laid_out", 37),
        ),
        (
            {"linear": (1.0, 0.0), "turned": (1.5, 0.0), "laid_out": (0.5, 1.0)},
            Choice("linear", "laid_out", 3),
        ),
        ({"linear": (1.0, 0.0), "turned": (0.5, 0.0)}, Choice("turned", "turned", 0)),
    ]
    for seconds, expected in cases:
        assert decide({kind: Seconds(*values) for kind, values in seconds.items()}) == expected
    assert [Choice("turned", "laid_out", 37).of(n) for n in (36, 37)] == ["turned", "laid_out"]


def test_small_models_are_not_measured_so_that_equal_runs_are_equal():
    assert choose(linear_layers(tiny_model()), 64) == Choice()
    engine = LocalEngine(tiny_policy())
    engine.tune(64)
    assert engine.choice == Choice(is_fused=True)
    windowed = LocalEngine(tiny_policy("mistral_windowed"))
    windowed.tune(64)
    assert windowed.choice == Choice()


def test_measuring_tells_seconds_of_every_kind():
    weights = [torch.randn(96, 64) for _ in range(3)] + [torch.randn(64, 96)]
    seconds = measure(weights, 16, ["linear", "turned"])
    assert list(seconds) == ["linear", "turned"]
    assert all(0 < step < 1 and 0 <= preparation < 1 for step, preparation in seconds.values())


def test_a_choice_is_measured_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # P15
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    weights = [torch.randn(96, 64), torch.randn(64, 96)]
    first = remembered(weights, 16, ["linear", "turned"])
    [file] = (tmp_path / "cache").iterdir()
    content = json.loads(file.read_text())
    assert content["products"] == first._asdict()
    other = Choice("turned", "turned") if first.short == "linear" else Choice()
    file.write_text(json.dumps(content | {"products": other._asdict()}))
    assert remembered(weights, 16, ["linear", "turned"]) == other
    remembered(weights, 8, ["linear", "turned"])
    assert len(list((tmp_path / "cache").iterdir())) == 2
    for damaged in ("", "[]", "{}", '{"products": {"short": "magic"}}'):
        file.write_text(damaged)
        remembered(weights, 16, ["linear", "turned"])
        assert json.loads(file.read_text())["rows"] == 16


def test_a_cache_that_can_not_be_written_costs_the_memory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    assert remembered([torch.randn(8, 8)], 4, ["linear"]) == Choice()


def test_a_short_way_that_differs_is_not_taken():
    policy = tiny_policy()
    norm = policy.backbone.get_submodule("layers.1.post_attention_layernorm")
    engine = LocalEngine(policy)

    def larger(
        _module: torch.nn.Module, _inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        return output * 1.01

    norm.register_forward_hook(larger)
    engine.tune(8)
    assert not engine.choice.is_fused
