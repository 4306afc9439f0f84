from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from muster.adapters import add_lora
from muster.cache import DecodeCache
from muster.engines.base import Engine, Sampling
from muster.engines.local import LocalEngine
from muster.errors import ModelError
from muster.gather import Item
from muster.policy import Policy, enable_gradient_checkpointing
from muster.records import Completion, Prompt, Sample
from muster.selfcheck import SelfCheck, self_check
from naive import exact_policy
from tiny import PLAIN, SHARING, tiny_model, tiny_policy, tiny_tokenizer

SAMPLING = Sampling(group_size=4, max_tokens=64, temperature=0.8, stop_ids=frozenset({2}))
ITEMS = [Item(Sample(id=str(n)), tuple(range(5, 5 + n)), "") for n in (9, 3, 30)]


def _check(policy: Policy, engine: Engine | None = None, **settings) -> SelfCheck:
    chosen = {"sampling": SAMPLING, "reference": policy.snapshot(), "tolerance": 1e-3, **settings}
    return self_check(policy, engine or LocalEngine(policy), ITEMS, **chosen)


def _assert_caught(name: str, at_least: float, run: Callable[[], SelfCheck]) -> str:
    """It stops, and says the number."""
    with pytest.raises(ModelError) as caught:
        run()
    message = str(caught.value)
    assert "allowed: 0.001" in message
    assert f"{name} is " in message
    assert float(message.split(f"{name} is ")[1].split(":")[0]) > at_least
    return message


@pytest.mark.parametrize("family", [*SHARING, *PLAIN])
def test_every_family_passes(family):
    policy = tiny_policy(family)
    check = _check(policy)
    assert (check.packed_against_plain is None) == (family in PLAIN)
    assert all(value is not None and value < 1e-5 for value in check.numbers().values() if value is not None)
    assert check.kl_to_reference is not None
    assert check.kl_to_reference < 1e-6
    assert check.sampler_against_trainer is not None
    assert check.sampler_against_trainer < 1e-5


def test_in_float64_all_numbers_are_rounding():
    for value in _check(exact_policy("gpt2")).numbers().values():
        assert value is not None
        assert value < 1e-6  # the batch keeps the sampler's logprobs in float32


@pytest.mark.parametrize("settings", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}], ids=str)
def test_truncated_sampling_passes(settings):
    found = _check(tiny_policy(), sampling=replace(SAMPLING, **settings)).sampler_against_trainer
    assert found is not None
    assert found < 1e-5


def test_an_adapter_and_checkpointed_layers_pass():
    model = add_lora(tiny_model(), rank=4, alpha=8, targets=["q_proj"], seed=0)
    policy = Policy(model, tiny_tokenizer(), max_tokens=256)
    enable_gradient_checkpointing(policy)
    kl = _check(policy).kl_to_reference
    assert kl is not None
    assert kl < 1e-6


def test_without_a_reference_there_is_no_kl():
    assert _check(tiny_policy(), reference=None).kl_to_reference is None


def test_it_leaves_no_gradient_and_no_other_weights_behind():
    policy = tiny_policy()
    before = policy.snapshot()
    _check(policy)
    assert all(param.grad is None and torch.equal(param, before[name]) for name, param in policy.trainable())


class _Shifted(nn.Module):
    """A model that does to its logits what the policy's head doesn't."""

    def __init__(self, inner: PreTrainedModel) -> None:
        super().__init__()
        self.inner = inner
        self.__dict__["config"] = inner.config

    def forward(self, **inputs: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.inner(**inputs).logits * 1.5)


def test_a_model_that_rescales_its_logits_is_caught():
    policy = tiny_policy()
    policy.base = cast(Any, _Shifted(policy.base))
    message = _assert_caught("head_against_model", 0.1, lambda: _check(policy))
    assert "does something to its logits that Muster doesn't know" in message


class _Elsewhere:
    """An engine that samples by settings of its own."""

    def __init__(self, inner: Engine, **settings: float) -> None:
        self.inner = inner
        self.settings = settings

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        return self.inner.generate(prompts, replace(sampling, **self.settings))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.inner.load_weights(weights, version)

    def close(self) -> None:
        self.inner.close()


def test_an_engine_that_reports_logprobs_at_another_temperature_is_caught():
    policy = tiny_policy()
    engine = _Elsewhere(LocalEngine(policy), temperature=1.0)
    message = _assert_caught("sampler_against_trainer", 0.1, lambda: _check(policy, engine))
    assert "the engine's weights, settings or cache are not the trainer's" in message


def test_an_engine_that_holds_other_weights_is_caught():
    policy = tiny_policy()
    engine = LocalEngine(policy)
    engine.load_weights(tiny_policy(seed=1).trainable(), 1)
    _assert_caught("sampler_against_trainer", 0.1, lambda: _check(policy, engine))


def test_an_engine_that_is_known_to_lag_passes():
    policy = tiny_policy()
    engine = LocalEngine(policy)
    old = tiny_policy(seed=1).snapshot()
    engine.load_weights(old.items(), 1)
    check = _check(policy, engine, sampled_by=old, reference=None)
    assert check.sampler_against_trainer is not None
    assert check.sampler_against_trainer < 1e-5


class _Misplaced(nn.Module):
    """A backbone that gets the positions of packed rows, or of decoding, without their restarts."""

    def __init__(self, inner: nn.Module, *, decoding: bool) -> None:
        super().__init__()
        self.inner = inner
        self.decoding = decoding

    def forward(self, layout: object = None, **inputs: Tensor) -> Tensor:
        if layout is None:
            return self.inner(**inputs)
        if isinstance(layout, DecodeCache) == self.decoding:
            positions = inputs["position_ids"]
            straight = torch.arange(positions.shape[1])[None]
            inputs["position_ids"] = positions + 1 if self.decoding else straight
        return self.inner(layout=layout, **inputs)


def test_packing_with_wrong_positions_is_caught():
    policy = tiny_policy("gpt2")
    policy.backbone = _Misplaced(policy.backbone, decoding=False)
    message = _assert_caught("packed_against_plain", 0.01, lambda: _check(policy))
    assert "its attention does something that shared prompts don't reproduce" in message


def test_decoding_at_wrong_positions_is_caught():
    policy = tiny_policy("gpt2")
    policy.backbone = _Misplaced(policy.backbone, decoding=True)
    message = _assert_caught("sampler_against_trainer", 0.01, lambda: _check(policy))
    assert "packed_against_plain" not in message


class _SeesPadding(nn.Module):
    """A backbone whose hidden states depend on how long the row is."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **inputs: Tensor) -> object:
        output = self.inner(**inputs)
        output.last_hidden_state = output.last_hidden_state * (1 + 0.01 * inputs["input_ids"].shape[1])
        return output


def test_logprobs_that_depend_on_padding_are_caught():
    policy = tiny_policy("mistral_windowed")
    policy.backbone = _SeesPadding(policy.backbone)
    _assert_caught("padding", 0.01, lambda: _check(policy))


def test_a_reference_that_is_not_the_policy_at_start_is_caught():
    policy = tiny_policy()
    message = _assert_caught(
        "kl_to_reference", 0.01, lambda: _check(policy, reference=tiny_policy(seed=1).snapshot())
    )
    assert "the reference is not the policy at start" in message


def test_numbers_that_are_not_numbers_are_caught():
    policy = tiny_policy()
    weights = policy.snapshot()
    weights["model.norm.weight"] = torch.full((32,), float("nan"))
    with pytest.raises(ModelError, match="kl_to_reference is nan"):
        _check(policy, reference=weights)
