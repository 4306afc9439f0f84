"""Gradients that are added where they lie are those that autograd would have added up."""

from typing import Any

import pytest
import torch
from torch import Tensor

from muster.policy import Policy
from tiny import tiny_model, tiny_tokenizer


def parts(vocab: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Three micro-batches with weights of their logprobs; in one the padding appears."""
    random = torch.Generator().manual_seed(4)
    ids = [torch.randint(0, 250, (2, 7), generator=random) for _ in range(3)]
    return [(few, torch.randn(2, 7, vocab, generator=random, dtype=dtype)) for few in ids]


def summed(policy: Policy, *, in_place: bool) -> dict[str, Tensor]:
    policy.model.zero_grad(set_to_none=True)
    model: Any = policy.model
    for ids, weights in parts(model.config.vocab_size, torch.float64):

        def go(ids: Tensor = ids, weights: Tensor = weights) -> None:
            (model(input_ids=ids, use_cache=False).logits.log_softmax(-1) * weights).sum().backward()

        if in_place:
            with policy.ways.summing(in_place=True):
                go()
        else:
            go()
    return {name: param.grad.clone() for name, param in policy.trainable() if param.grad is not None}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma", "mistral", "gpt2"])
def test_gradients_of_micro_batches_add_up(family: str):
    policy = Policy(tiny_model(family, dtype=torch.float64), tiny_tokenizer(), max_tokens=64)
    expected, found = summed(policy, in_place=False), summed(policy, in_place=True)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-10, atol=1e-12), name


def test_a_second_micro_batch_writes_no_gradient_of_a_weight_anew():
    policy = Policy(tiny_model("llama"), tiny_tokenizer(), max_tokens=64)
    handed: list[str] = []
    for name, param in policy.trainable():
        if param.ndim == 2:
            param.register_hook(lambda grad, name=name: handed.append(name) if grad is not None else None)
    matrices = [name for name, param in policy.trainable() if param.ndim == 2]
    model: Any = policy.model
    ids = torch.tensor([[5, 6, 7]])
    with policy.ways.summing(in_place=True):
        model(input_ids=ids).logits.sum().backward()
        assert sorted(set(handed)) == sorted(matrices)
        handed.clear()
        model(input_ids=ids).logits.sum().backward()
    assert handed == []
    # Outside, as autograd does it.
    model(input_ids=ids).logits.sum().backward()
    assert sorted(set(handed)) == sorted(matrices)
