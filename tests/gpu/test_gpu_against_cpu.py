"""A GPU computes what the CPU computes, within rounding: run by `make test-gpu` where there is one."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from muster.adapters import add_lora
from muster.algo.recipes import GRPO
from muster.batch import count_totals
from muster.clock import Clock
from muster.devices import moved, name_of
from muster.engines.base import Sampling
from muster.engines.sampler import draw
from muster.export import Gguf, export_model
from muster.export.writing import on_full_base
from muster.loop import train
from muster.policy import Policy, enable_gradient_checkpointing
from muster.pretrained import load_model, load_tokenizer
from muster.quantized import quantize
from muster.run import Watchers, run
from muster.update import Budget, Objective, update
from muster.using import export
from naive import make_batch
from tiny import PLAIN, SHARING, save_tiny_model, tiny_model, tiny_tokenizer
from tiny_gguf import write_tiny_gguf
from toy_run import config_for, number, toy_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

GPU = torch.device("cuda")
CPU = torch.device("cpu")
BATCH = make_batch([(7, [5, 1]), (3, [2, 3, 1, 6, 4]), (1, [4, 4, 4])])
FAMILIES = (*SHARING, *PLAIN)

LOGPROBS = 1e-4
"""Nats by which logprobs of tiny models may differ in float32."""
GRADIENTS = 1e-4
"""Of the largest gradient of a parameter."""


def policy_on(device: torch.device, family: str = "llama", autocast: torch.dtype | None = None) -> Policy:
    """The same weights, wherever they are."""
    model = tiny_model(family)
    torch.nn.Module.to(model, device)
    return Policy(model, tiny_tokenizer(), max_tokens=256, autocast=autocast)


def largest(mine: torch.Tensor, other: torch.Tensor) -> float:
    return float((mine.detach().cpu() - other.detach().cpu()).abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_entropies_are_those_of_the_cpu(family: str):
    scores = [policy_on(device, family).score(BATCH, temperature=0.7) for device in (CPU, GPU)]
    assert scores[1].logprobs.device.type == "cuda"
    assert largest(scores[0].logprobs, scores[1].logprobs) < LOGPROBS
    assert largest(scores[0].entropy, scores[1].entropy) < LOGPROBS


def gradients_on(device: torch.device, family: str, *, budget: int = 512, again: bool = False):
    """By name, of one update by plain descent at rate 1."""
    policy = policy_on(device, family)
    if again:
        enable_gradient_checkpointing(policy)
    before = policy.snapshot()
    with torch.no_grad():
        sampled = policy.score(BATCH, temperature=1.0).logprobs.float().cpu()
    batch = replace(BATCH, sampler_logprobs=sampled)
    update(
        policy,
        torch.optim.SGD([param for _, param in policy.trainable()], lr=1.0),
        batch,
        count_totals(batch, 0, 0, limit=8),
        Objective(recipe=GRPO, temperature=1.0, entropy_coef=0.01),
        max_grad_norm=math.inf,
        budget=Budget(tokens=budget),
        clock=Clock(),
    )
    return {name: (before[name] - param.detach()).cpu() for name, param in policy.trainable()}


@pytest.mark.parametrize("family", SHARING)
def test_no_scores_of_all_positions_with_all_others_are_formed(family: str):
    policy = policy_on(GPU, family)
    # Without torch's own formula, which forms them; it raises where no kernel takes the tensors.
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        policy.score(BATCH, temperature=1.0).logprobs.sum().backward()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_packed_rows_are_those_of_the_cpu(family: str):
    expected, found = (gradients_on(device, family) for device in (CPU, GPU))
    for name, gradient in expected.items():
        assert largest(gradient, found[name]) <= GRADIENTS * float(gradient.abs().max()) + 1e-7, name


def test_micro_batches_and_checkpointing_do_not_change_the_gradient_there_either():
    expected = gradients_on(GPU, "llama")
    for found in (gradients_on(GPU, "llama", budget=16), gradients_on(GPU, "llama", again=True)):
        for name, gradient in expected.items():
            assert largest(gradient, found[name]) <= GRADIENTS * float(gradient.abs().max()) + 1e-7, name


@pytest.mark.parametrize("sync_every", [1, 2])
def test_three_steps_sample_and_learn_what_they_do_on_the_cpu(sync_every: int):
    runs = [toy_run(policy_on(device), num_steps=3, sync_every=sync_every) for device in (CPU, GPU)]
    both = [list(train(one)) for one in runs]
    for mine, other in zip(*both, strict=True):
        assert [[rollout.completion.ids for rollout in group.rollouts] for group in mine.groups] == [
            [rollout.completion.ids for rollout in group.rollouts] for group in other.groups
        ]
        assert number(mine, "reward") == number(other, "reward")
        assert number(mine, "loss") == pytest.approx(number(other, "loss"), abs=1e-4)
        assert number(mine, "grad_norm") == pytest.approx(number(other, "grad_norm"), rel=1e-3)
        assert number(other, "sampling/mismatch") < LOGPROBS
    for name, weights in runs[0].policy.snapshot().items():
        # AdamW's steps are about as long as its rate, 1e-3, whatever the gradient: a tenth of one.
        assert largest(weights, dict(runs[1].policy.trainable())[name]) < 3e-4, name


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_bfloat16_computes_over_float32_weights_and_gives_float32_logits(family: str):
    policy = policy_on(GPU, family, torch.bfloat16)
    assert {param.dtype for param in policy.model.parameters()} == {torch.float32}
    scores = policy.score(BATCH, temperature=1.0)
    assert policy.logits(policy.states(BATCH)).dtype == torch.float32
    assert scores.logprobs.dtype == torch.float32
    scores.logprobs.sum().backward()
    assert {param.grad.dtype for _, param in policy.trainable() if param.grad is not None} == {torch.float32}
    plain = policy_on(CPU, family).score(BATCH, temperature=1.0)
    assert 0 < largest(scores.logprobs, plain.logprobs) < 0.5
    assert float((scores.logprobs.cpu() - plain.logprobs)[BATCH.mask].abs().mean()) < 0.05


@pytest.mark.parametrize("settings", [{}, {"top_k": 7, "top_p": 0.9, "min_p": 0.01}, {"temperature": 0.0}])
def test_tokens_are_drawn_as_on_the_cpu(settings: dict[str, float]):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(64, 1000, generator=generator)
    uniform = torch.rand(64, generator=generator, dtype=torch.float64)
    sampling = Sampling(**{"group_size": 1, "max_tokens": 1, **settings})
    mine, other = draw(logits, uniform, sampling), draw(moved(logits, GPU), moved(uniform, GPU), sampling)
    assert torch.equal(mine.ids, other.ids.cpu())
    assert largest(mine.logprobs, other.logprobs) < LOGPROBS


def test_a_tensor_arrives_whole_while_the_device_is_busy():
    busy = torch.randn(2000, 2000, device=GPU)
    tensors = [torch.full((1000,), float(value)) for value in range(50)]
    arrived = []
    for tensor in tensors:
        busy = busy @ busy / busy.norm()
        arrived.append(moved(tensor, GPU))
        # Its memory on this side is given to the next one at once.
        del tensor
    assert [float(tensor.mean()) for tensor in arrived] == [float(value) for value in range(50)]


@pytest.mark.parametrize("lora", [{}, {"lora": {"rank": 4}}])
def test_a_run_says_its_device_is_proven_resumes_and_is_exported(tmp_path: Path, lora: dict[str, object]):
    save_tiny_model(tmp_path / "model")
    config = config_for(tmp_path, tmp_path / "runs", model=lora, run={"save_every": 1, "steps": 3})
    said: list[str] = []
    half = run(config, watchers=Watchers(say=said.append))
    assert next(half).step == 1
    half.close()
    assert [report.step for report in run(config, resume=True)] == [2, 3]
    assert f"device: {name_of(torch.device('cuda', 0))}; computing in float32" in said
    folder = tmp_path / "runs" / "toy"
    assert json.loads((folder / "meta.json").read_text())["device"] == torch.cuda.get_device_name()
    assert (folder / "final").is_dir()
    assert export(config, folder, tmp_path / "merged", merge=True).difference < LOGPROBS


def test_a_gguf_holds_the_weights_of_the_gpu(tmp_path: Path):
    place = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    tokenizer, model = load_tokenizer(place), load_model(place, dtype=torch.float32)
    torch.nn.Module.to(model, GPU)
    policy = Policy(model, tokenizer, max_tokens=64)
    proof = export_model(
        policy,
        tmp_path / "model.gguf",
        card="",
        probes=[(5, 6, 7, 8)],
        base_path=place,
        gguf=Gguf(dtype="f32"),
    )
    assert proof.difference < LOGPROBS


def test_a_base_in_four_bits_is_made_whole_in_the_memory_of_the_machine(tmp_path: Path):
    place = str(save_tiny_model(tmp_path / "model"))
    model = load_model(place, dtype="auto")
    quantize(model, "nf4", GPU)
    torch.nn.Module.to(model, GPU)
    adapted = add_lora(model, rank=2, alpha=4.0, targets=["q_proj"], seed=0)
    policy = Policy(adapted, tiny_tokenizer(), max_tokens=64)
    whole = on_full_base(policy, place)
    assert (policy.device.type, whole.device.type) == ("cuda", "cpu")
    for (name, mine), (_, other) in zip(policy.trainable(), whole.trainable(), strict=True):
        assert torch.equal(mine.cpu(), other), name
