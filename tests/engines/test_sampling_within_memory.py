"""A device that runs out of memory while tokens are sampled is given fewer rows at once."""

import pytest
import torch
from torch import nn

from muster.engines.base import Sampling
from muster.engines.local import LocalEngine
from muster.records import Prompt, StreamKey
from naive import exact_policy
from tiny import tiny_policy

SAMPLING = Sampling(group_size=3, max_tokens=12, stop_ids=frozenset(range(40)))
PROMPTS = [
    Prompt(ids=tuple(range(5, 5 + length)), key=StreamKey(1, 1, slot, 0))
    for slot, length in enumerate((3, 11, 1, 6))
]


@pytest.mark.parametrize("family", ["llama", "mistral_windowed"])
def test_running_out_of_memory_halves_the_rows_and_samples_the_same(family: str):
    whole = LocalEngine(exact_policy(family)).generate(PROMPTS, SAMPLING)
    policy = exact_policy(family)

    def short_of_memory(_: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if len(inputs[0]) > 5:
            raise torch.OutOfMemoryError("no memory")

    policy.head.register_forward_pre_hook(short_of_memory)
    engine = LocalEngine(policy)
    groups = engine.generate(PROMPTS, SAMPLING)
    # Of 12 rollouts first all, then 6.
    assert engine.max_rows == 3
    for group, other in zip(groups, whole, strict=True):
        for mine, one in zip(group, other, strict=True):
            assert (mine.ids, mine.finish_reason) == (one.ids, one.finish_reason)
            assert mine.sampler_logprobs == pytest.approx(one.sampler_logprobs, abs=1e-9)


def test_a_device_without_memory_for_one_row_says_so():
    def never(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    policy = tiny_policy()
    policy.head.register_forward_pre_hook(never)
    engine = LocalEngine(policy)
    with pytest.raises(torch.OutOfMemoryError):
        engine.generate(PROMPTS, SAMPLING)
    assert engine.max_rows == 1
