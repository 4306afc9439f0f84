"""Sampling in bfloat16: in the trainer's precision, weights cast once a call."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from muster.engines.base import Sampling
from muster.engines.local import LocalEngine
from muster.policy import Policy
from muster.records import Prompt, StreamKey
from tiny import tiny_model, tiny_tokenizer

PROMPTS = [Prompt(ids=(10, 11, 12), key=StreamKey(1, 1, slot, 0)) for slot in range(2)]


def low_policy(family: str) -> Policy:
    return Policy(tiny_model(family), tiny_tokenizer(), max_tokens=128, autocast=torch.bfloat16)


class Casts(TorchDispatchMode):
    """Counts how often something of a shape is cast to bfloat16."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].shape == self.shape:
            self.count += (kwargs or {}).get("dtype") == torch.bfloat16
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_weights_are_cast_once_a_call_and_not_at_every_token(family: str):
    policy = low_policy(family)
    layer: Any = policy.backbone.get_submodule("layers.0.mlp.down_proj")
    with Casts(layer.weight.shape) as casts:
        LocalEngine(policy).generate(PROMPTS, Sampling(group_size=2, max_tokens=6, ignore_eos=True))
    # One of each of the two layers.
    assert casts.count == 2
    assert layer.weight.dtype == torch.float32


def test_a_sampler_in_bfloat16_is_near_the_one_in_float32():
    sampling = Sampling(group_size=4, max_tokens=1, ignore_eos=True)
    low = LocalEngine(low_policy("llama")).generate(PROMPTS, sampling)
    plain = Policy(tiny_model("llama"), tiny_tokenizer(), max_tokens=128)
    whole = LocalEngine(plain).generate(PROMPTS, sampling)
    same = [
        (mine.sampler_logprobs[0], other.sampler_logprobs[0])
        for mine, other in zip([c for g in low for c in g], [c for g in whole for c in g], strict=True)
        if mine.ids == other.ids
    ]
    assert len(same) >= 6
    assert all(abs(mine - other) < 0.1 for mine, other in same)
    assert any(mine != other for mine, other in same)
