"""Kernels take the place of modules' own code where they are equal and faster; by a stand-in, on the CPU.

What liger-kernel itself computes: tests/real_liger.py, and tests/gpu.
"""

import copy
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from liger_like import (
    VERSION,
    LigerGELUMulFunction,
    LigerRMSNormFunction,
    LigerSiLUMulFunction,
    write_package,
)
from muster.liger import Kernels, Pieces, fit, installed
from naive import make_batch
from tiny import tiny_model, tiny_policy

KERNELS = Kernels(VERSION, LigerRMSNormFunction.apply, LigerSiLUMulFunction.apply, LigerGELUMulFunction.apply)
NORM, GATED = "norm 24 float32", "gated 40 float32"
PAUSE_S = 0.02
"""Far more than anything here takes to compute."""


@pytest.fixture(autouse=True)
def _measured_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What one test measures is nothing to another."""
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))


class PloddingRMSNorm(nn.Module):
    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(24) + 0.5)
        self.eps = 1e-6
        self.pause_s = pause_s

    def forward(self, hidden: Tensor) -> Tensor:
        time.sleep(self.pause_s)
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps) * self.weight


class SiLU(nn.Module):
    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.pause_s)
        return F.silu(x)


class Mlp(nn.Module):
    def __init__(self, pause_s: float, scale: float) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(24, 40, bias=False), nn.Linear(24, 40)
        self.down_proj = nn.Linear(40, 24, bias=False)
        self.act_fn = SiLU(pause_s)
        self.scale = scale

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scale * self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden))


class Backbone(nn.Module):
    """A norm and a gated MLP below a residual, each as slow as it is told."""

    def __init__(self, pause_s: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.embed = nn.Embedding(8, 24)
            self.norm = PloddingRMSNorm(pause_s)
            self.mlp = Mlp(pause_s, scale)

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Tensor:
        hidden = self.embed(input_ids)
        return hidden + self.mlp(self.norm(hidden))


def fitted(model: nn.Module, kernels: Kernels = KERNELS) -> Pieces:
    return fit(model, nullcontext, device_type="cpu", kernels=kernels, num_elements=4096)


def results(model: nn.Module) -> list[Tensor]:
    """What it gives for some tokens, and all gradients."""
    model.zero_grad()
    out = model(torch.arange(8)[None])
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out.detach(), *(param.grad for param in model.parameters() if param.grad is not None)]


def test_what_is_equal_and_faster_computes_from_then_on():
    model, calls = Backbone(PAUSE_S), []

    def counted(a: Tensor, b: Tensor) -> Tensor:
        calls.append(a.shape)
        return KERNELS.silu(a, b)

    before = results(model)
    pieces = fitted(model, KERNELS._replace(silu=counted))
    assert pieces.taken == {NORM, GATED}
    assert all(trial.forward < 1e-6 and trial.backward < 1e-6 for trial in pieces.trials.values())
    calls.clear()
    after = results(model)
    assert calls == [(1, 8, 40)]
    assert len(after) == len(before) == 7
    for mine, other in zip(after, before, strict=True):
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6)
    # What isn't taken any more computes as it did, to the last bit.
    pieces.taken = frozenset()
    assert all(torch.equal(*pair) for pair in zip(results(model), before, strict=True))


def test_a_kernel_that_is_not_faster_is_left_alone():
    def dawdling(a: Tensor, b: Tensor) -> Tensor:
        time.sleep(PAUSE_S)
        return KERNELS.silu(a, b)

    model = Backbone()
    pieces = fitted(model, KERNELS._replace(silu=dawdling))
    assert GATED not in pieces.taken
    assert 0 < pieces.trials[GATED].speed < 1
    assert not pieces.trials[GATED].refused
    assert f"{GATED} (0." in next(line for line in pieces.lines() if line.startswith("not by liger-kernel"))


def scaled(name: str, by: float) -> Any:
    """A function whose gradient of one input is off, though its result is right."""
    place = {"input": 0, "weight": 1}[name]

    class Function(LigerRMSNormFunction):
        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
            grads = list(LigerRMSNormFunction.backward(ctx, *grad_outputs))
            grads[place] = grads[place] * by
            return tuple(grads)

    return Function.apply


def unscaled_gate(a: Tensor, b: Tensor) -> Tensor:
    """Right in value; of its gradients the gate's is that of the sigmoid alone."""
    return a.detach() * torch.sigmoid(a) * b


def failing(*_: object) -> Tensor:
    raise RuntimeError("no kernel image is available\nfor this device")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"norm": lambda x, w, *rest: KERNELS.norm(x, w, *rest) * 1.001}, NORM, "its result is off by 1.0e-03"),
    ({"norm": scaled("input", 1.001)}, NORM, "its gradient of the input is off by 1.0e-03"),
    ({"norm": scaled("weight", 0.5)}, NORM, "its gradient of the weight is off by 5.0e-01"),
    ({"norm": lambda x, w, *rest: KERNELS.norm(x, w, *rest) * torch.nan}, NORM, "its result is off by nan"),
    ({"norm": lambda x, w, *rest: KERNELS.norm(x, w, *rest).double()}, NORM, "gives torch.float64, where"),
    ({"silu": lambda a, b: KERNELS.gelu(a, b)}, GATED, "its result is off by"),
    ({"silu": unscaled_gate}, GATED, "its gradient of the gate is off by"),
    ({"silu": failing}, GATED, "RuntimeError: no kernel image is available"),
]


@pytest.mark.parametrize(("change", "name", "reason"), REFUSED)
def test_a_kernel_that_differs_or_fails_is_refused_and_named(change: dict[str, Any], name: str, reason: str):
    model = Backbone()
    pieces = fitted(model, KERNELS._replace(**change))
    assert {each for each, trial in pieces.trials.items() if trial.refused} == {name}
    assert name not in pieces.taken
    assert pieces.trials[name].refused.startswith(reason)
    assert any(f"{name} ({reason}" in line for line in pieces.lines())


def test_an_mlp_that_does_more_than_its_parts_keeps_its_own_code():
    pieces = fitted(Backbone(scale=1.5))
    assert not pieces.trials[NORM].refused
    assert pieces.trials[GATED].refused.startswith("with it the whole module's result is off by 3.3e-01")


def test_a_copy_of_the_model_computes_with_its_own_weights():
    model = Backbone()
    pieces = fitted(model)
    pieces.taken = frozenset(pieces.trials)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for param in other.parameters():
            param.zero_()
        assert other(torch.arange(8)[None]).abs().max() == 0
        assert model(torch.arange(8)[None]).abs().max() > 0


# The families that are trained


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_kernels_compute_the_logprobs_and_gradients_of_the_model(family: str, autocast: torch.dtype | None):
    batch = make_batch([(7, [5, 1]), (3, [2, 3, 1])])
    policy = tiny_policy(family)
    policy.autocast = autocast

    def scored() -> list[Tensor]:
        policy.model.zero_grad()
        logprobs = policy.score(batch, temperature=0.7).logprobs
        logprobs.sum().backward()
        return [logprobs.detach(), *(p.grad.clone() for _, p in policy.trainable() if p.grad is not None)]

    before = scored()
    pieces = fit(policy.backbone, policy.precision, device_type="cpu", kernels=KERNELS, num_elements=4096)
    refused = {name for name, trial in pieces.trials.items() if trial.refused}
    gated = "gated 48 float32" if autocast is None else "gated 48 bfloat16"
    # What comes from a product in bfloat16 leaves Qwen's own norm in float32, and the kernel in bfloat16.
    heads = {"qwen3": {"norm 8 float32" if autocast is None else "norm 8 bfloat16"}}.get(family, set())
    assert pieces.trials.keys() == {"norm 32 float32", gated} | heads
    assert refused == (heads if autocast is not None else set())
    pieces.taken = frozenset(pieces.trials) - refused
    bound = 1e-4 if autocast is None else 0.1
    after = scored()
    assert len(after) == len(before) > 10
    for mine, other in zip(after, before, strict=True):
        assert (mine - other).abs().max() <= bound * other.abs().max()
    assert any(not torch.equal(*pair) for pair in zip(after, before, strict=True))


def test_a_frozen_norm_below_an_adapter_is_tried_without_a_gradient_of_its_weight():
    model = Backbone()
    model.norm.weight.requires_grad_(False)
    wrong = fitted(model, KERNELS._replace(norm=scaled("weight", 0.5)))
    assert not any(trial.refused for trial in wrong.trials.values())


# What is installed


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of packages that Python finds, and forgets afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "liger_kernel"]:
        del sys.modules[name]


def test_the_kernels_are_those_of_the_package_that_is_installed(packages: Path):
    write_package(packages)
    kernels = installed()
    assert kernels is not None
    assert kernels.version == VERSION
    pieces = fit(Backbone(PAUSE_S), nullcontext, device_type="cpu", num_elements=4096)
    assert pieces.taken == {NORM, GATED}
    assert pieces.lines()[0].startswith(f"computed by liger-kernel {VERSION}: {GATED} (")


def test_how_fast_a_kernel_is_decides_once_on_a_machine(monkeypatch: pytest.MonkeyPatch):
    speeds = [2.0, 0.5]
    monkeypatch.setattr("muster.liger.trying._speed", lambda *_: speeds.pop(0))
    first = fit(Backbone(), nullcontext, device_type="cpu", kernels=KERNELS, num_elements=4096)
    again = fit(Backbone(), nullcontext, device_type="cpu", kernels=KERNELS, num_elements=4096)
    assert len(first.taken) == 1
    assert again.taken == first.taken
    assert speeds == []  # a third measurement would find none


def test_outside_of_gpus_the_package_is_not_imported_and_nothing_changes(packages: Path):
    write_package(packages, "raise SystemExit('imported')")
    model = tiny_model("llama")
    before = {name: vars(module).get("forward") for name, module in model.named_modules()}
    pieces = fit(model.base_model, nullcontext)
    assert (pieces, pieces.lines(), pieces.recorded()) == (Pieces(), [], {})
    assert "liger_kernel" not in sys.modules
    assert {name: vars(module).get("forward") for name, module in model.named_modules()} == before


def test_a_package_that_cannot_be_imported_is_said_and_left_alone(packages: Path):
    write_package(packages, "raise RuntimeError('0 active drivers ([]).')")
    pieces = fit(Backbone(), nullcontext, device_type="cpu")
    assert pieces.lines() == [
        "liger-kernel is installed and can't be used: RuntimeError: 0 active drivers ([])."
    ]
    assert pieces.taken == frozenset()


def test_without_the_package_nothing_is_tried_or_said(monkeypatch: pytest.MonkeyPatch):
    # What Python keeps of a package that it has not found.
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    assert installed() is None
    assert fit(Backbone(), nullcontext, device_type="cpu") == Pieces()
