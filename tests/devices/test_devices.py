"""Nothing but a copy takes tensors of two devices, wherever the weights are; phases wait for theirs.

torch's "meta" device stands in for one that is not the CPU: it has shapes, no values and no memory. What
needs values (masks that pick, tokens that are drawn) runs in tests/gpu.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from muster.adapters import add_lora
from muster.algo.recipes import RECIPES, loss
from muster.algo.tokens import Totals
from muster.batch import pack
from muster.clock import Clock
from muster.devices import device_here, moved, name_of, settling
from muster.engines.base import Sampling
from muster.engines.decoding import PlainDecoder, SharedPrefixDecoder
from muster.engines.fused import FAMILIES, FusedBackbone
from muster.logprobs import token_stats
from muster.policy import Policy, Scores, enable_gradient_checkpointing
from muster.update import tokens_of
from naive import make_batch
from tiny import SHARING, tiny_model, tiny_tokenizer

META = torch.device("meta")
BATCH = make_batch([(7, [5, 1]), (3, [2, 3, 1])])


class OneDevice(TorchDispatchMode):
    """Fails where an operation other than a copy takes tensors of two devices; numbers may lie anywhere."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.ndim]
        is_copy = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
        devices = {tensor.device.type for tensor in given}
        assert is_copy or len(devices) < 2, f"{func} takes tensors on {devices}"
        return func(*args, **(kwargs or {}))


def far_policy(family: str) -> Policy:
    return Policy(tiny_model(family).to(META), tiny_tokenizer(), max_tokens=256)  # pyright: ignore[reportArgumentType]


def test_the_mode_of_this_test_sees_two_devices():
    with pytest.raises(AssertionError, match="takes tensors on"), OneDevice():
        torch.zeros(2, device=META).add(torch.zeros(2))
    with OneDevice():
        assert torch.zeros(2).to(META).add(1.0).device == META


@pytest.mark.parametrize("family", SHARING)
def test_packed_rows_are_computed_where_the_weights_are(family: str):
    policy, packed = far_policy(family), pack(BATCH)
    assert policy.packs
    with OneDevice():
        hidden = policy.hidden(moved(packed.ids, META), moved(packed.positions, META), packed.layout)
        policy.logits(hidden).sum().backward()
    assert hidden.device == META


@pytest.mark.parametrize("family", SHARING)
def test_tokens_are_decoded_where_the_weights_are(family: str):
    policy, sampling = far_policy(family), Sampling(group_size=3, max_tokens=4)
    ways: list[FusedBackbone | None] = [None]
    if type(policy.backbone) in FAMILIES:
        ways.append(FusedBackbone(policy.backbone, "linear"))
    for forward in ways:
        with torch.no_grad(), OneDevice():
            decoder = SharedPrefixDecoder(policy, [(5, 6, 7), (8, 9)], sampling, 6, forward)
            logits = decoder.join([0, 0, 1])
            decoder.step(logits.argmax(dim=1))
            decoder.leave([1])
            # One joins others that are further on, of another prompt.
            decoder.join([0])
            assert decoder.step(torch.zeros(3, dtype=torch.long, device=META)).device == META


def test_plain_rows_are_decoded_where_the_weights_are():
    # The other families' masks need values.
    policy, sampling = far_policy("gemma2"), Sampling(group_size=3, max_tokens=4)
    assert not policy.packs
    with torch.no_grad(), OneDevice():
        decoder = PlainDecoder(policy, [(5, 6, 7), (8, 9)], sampling, 6)
        decoder.step(decoder.join([0, 0, 1]).argmax(dim=1))
        decoder.leave([1])
        assert decoder.step(torch.zeros(2, dtype=torch.long, device=META)).device == META


@pytest.mark.parametrize("checkpoints", [False, True])
def test_an_adapter_is_trained_where_its_base_is(checkpoints: bool):
    base: Any = tiny_model("llama")
    model = add_lora(base.to(META), rank=2, alpha=4.0, targets=["q_proj", "down_proj"], seed=0)
    policy, packed = Policy(model, tiny_tokenizer(), max_tokens=256), pack(BATCH)
    if checkpoints:
        enable_gradient_checkpointing(policy)
    with OneDevice():
        hidden = policy.hidden(moved(packed.ids, META), moved(packed.positions, META), packed.layout)
        policy.logits(hidden).sum().backward()
    assert {param.grad.device for _, param in policy.trainable() if param.grad is not None} == {META}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_loss_and_its_gradient_are_computed_where_the_scores_are(recipe: Any):
    shape = BATCH.ids.shape
    logprobs = torch.zeros(shape, device=META, requires_grad=True)
    scores = Scores(logprobs, torch.zeros(shape, device=META), torch.zeros(shape, device=META).bool())
    with OneDevice():
        tokens = tokens_of(BATCH, scores)
        values = [getattr(tokens, item.name) for item in fields(tokens)]
        assert {value.device for value in values if value is not None} == {META}
        totals = Totals(tokens=12, sequences=5, limit=8)
        loss(tokens, recipe, totals, kl_coef=0.0, entropy_coef=0.0, gate_threshold=0.0).backward()


@pytest.mark.parametrize("kept", [None, torch.zeros(6, 2, dtype=torch.long, device=META)])
def test_logprobs_are_computed_where_the_states_are(kept: Tensor | None):
    policy = far_policy("llama")
    states = torch.zeros(6, 32, device=META, requires_grad=True)
    targets = torch.zeros(6, dtype=torch.long, device=META)
    with OneDevice():
        stats = token_stats(
            policy.logits, states, targets, temperature=0.7, num_vocab=259, kept=kept, entropy_gradient=True
        )
        (stats.logprobs + stats.entropy).sum().backward()
    assert states.grad is not None


def test_a_tensor_is_moved_only_where_it_has_to_be():
    tensor = torch.arange(3)
    assert moved(tensor, torch.device("cpu")) is tensor
    assert moved(tensor, META).device == META


def test_the_device_has_a_name(monkeypatch: pytest.MonkeyPatch):
    if not torch.cuda.is_available():
        assert device_here().type == "cpu"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert name_of(torch.device("cpu")) == "CPU, 2 threads"


def test_a_phase_ends_once_its_device_is_done():
    ended: list[str] = []

    def settle() -> None:
        ended.append("settled")

    clock = Clock(settle=settle)
    with clock.phase("forward"):
        ended.append("asked")
    assert ended == ["asked", "settled"]
    wait: Callable[[], object] = settling(torch.device("cpu"))
    assert wait() is None
