"""Optimizers by name: their steps by hand, their options by signature, their state through a checkpoint."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from muster.checkpoint import save
from muster.errors import CheckpointError, ConfigError
from muster.loop import train
from muster.optimizer import Kept, choose, kept, make_optimizer, put_back, rehearse
from muster.snapshot import restore, snapshot
from tiny import tiny_policy
from toy_run import same, toy_run, weights_of

ODD = Path(__file__).with_name("odd_optimizers.py")
NAMED = ("adamw", "adamw_8bit", "paged_adamw_8bit", "sgd")


def stepped(name, options, gradients, *, lr, weight_decay=0.0, shape=(1, 1), start=1.0):
    """A parameter after one step for each gradient, in float64."""
    param = nn.Parameter(torch.full(shape, start, dtype=torch.float64))
    optimizer = choose(name, options, weight_decay).over([param], lr)
    for gradient in gradients:
        param.grad = torch.full(shape, gradient, dtype=torch.float64)
        optimizer.step()
    return param.detach()


def adamw_by_hand(gradients, *, lr, betas, eps, weight_decay, start=1.0):
    weight, mean, square = start, 0.0, 0.0
    for number, gradient in enumerate(gradients, 1):
        weight -= lr * weight_decay * weight
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient**2
        unbiased = mean / (1 - betas[0] ** number), square / (1 - betas[1] ** number)
        weight -= lr * unbiased[0] / (math.sqrt(unbiased[1]) + eps)
    return weight


def test_adamw_is_its_formula():
    gradients, settings = [0.5, -2.0, 0.25], {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-6}
    found = stepped("adamw", {"betas": [0.9, 0.99], "eps": 1e-6}, gradients, lr=0.1, weight_decay=0.5)
    assert found.item() == pytest.approx(adamw_by_hand(gradients, **settings, weight_decay=0.5), rel=1e-12)
    # By default, as torch has it.
    default = adamw_by_hand(gradients, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    assert stepped("adamw", {}, gradients, lr=0.1).item() == pytest.approx(default, rel=1e-12)


def test_adamw_is_torchs_to_the_last_bit():
    generator = torch.Generator().manual_seed(3)
    first = nn.Parameter(torch.randn(8, 5, generator=generator))
    second = nn.Parameter(first.detach().clone())
    ours = choose("adamw", {"betas": [0.9, 0.99]}, 0.1).over([first], 1e-2)
    theirs = torch.optim.AdamW([second], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    for _ in range(5):
        first.grad = torch.randn(8, 5, generator=generator)
        second.grad = first.grad.clone()
        ours.step()
        theirs.step()
        assert torch.equal(first, second)


def test_sgd_by_hand():
    # 1 - 0.1 * 2 = 0.8; momentum 0.5 * 2 + 4 = 5; 0.8 - 0.1 * 5 = 0.3
    assert stepped("sgd", {"momentum": 0.5}, [2.0, 4.0], lr=0.1).item() == pytest.approx(0.3, rel=1e-12)
    # The decay joins the gradient: 1 - 0.1 * (2 + 0.5 * 1) = 0.75
    assert stepped("sgd", {}, [2.0], lr=0.1, weight_decay=0.5).item() == pytest.approx(0.75, rel=1e-12)


@pytest.mark.parametrize("name", NAMED)
def test_biases_and_norms_do_not_decay(name):
    policy = tiny_policy()
    groups = make_optimizer(policy, choose(name, {}, 0.1), lr=1e-3).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert {param.ndim for param in groups[0]["params"]} == {2}
    assert {param.ndim for param in groups[1]["params"]} == {1}


def test_eight_bits_come_close_to_adamw_in_a_quarter_of_the_memory():
    eight, full = rehearse(choose("adamw_8bit", {}, 0.0), 1e-3), rehearse(choose("adamw", {}, 0.0), 1e-3)
    assert full.state_share == pytest.approx(2.0, abs=0.01)
    assert eight.state_share < 0.75
    shape = (64, 80)
    ours, theirs = (stepped(name, {}, [0.5], lr=0.1, shape=shape).float() for name in ("adamw_8bit", "adamw"))
    assert (ours - theirs).abs().max() < 2e-3
    assert rehearse(choose("sgd", {}, 0.0), 1e-3).state_share == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in NAMED),
        ("sgd", {"momentum": 0.9, "nesterov": True}),
        ("adamw", {"amsgrad": True}),
        ("torch.optim.Adafactor", {"beta2_decay": -0.7}),
        ("torch.optim.RAdam", {"decoupled_weight_decay": True}),
        ("torch.optim:Rprop", {"etas": [0.5, 1.1]}),
        ("torch.optim.ASGD", {}),
        (f"{ODD}:Signs", {"decay": 0.25}),
    ],
)
def test_state_goes_through_a_checkpoint_bit_for_bit(name, options):
    decay = 0.0 if name.endswith(("Rprop", "Signs")) else 0.1
    assert rehearse(choose(name, options, decay), 1e-3).state_share >= 0


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit", f"{ODD}:Signs"])
def test_a_run_goes_on_as_it_would_have(name, tmp_path):
    def run():
        found = toy_run(tiny_policy(hidden_size=64, intermediate_size=128), num_steps=2)
        found.optimizer = make_optimizer(found.policy, choose(name, {}, 0.0), lr=1e-3)
        return found

    first, second = run(), run()
    reports = train(first)
    next(reports)
    path = save(tmp_path, 1, snapshot(first))
    next(reports)
    restore(second, path)
    list(train(second))
    assert second.state.step == 2
    assert same(weights_of(first), weights_of(second))


def test_a_checkpoint_of_tensors_alone_is_still_read():
    run = toy_run(num_steps=2)
    list(train(run))
    order = [name for name, _ in run.policy.trainable()]
    saved = kept(run.optimizer, order)
    assert len(saved.tensors) == 3 * len(order)
    fresh = toy_run(num_steps=2)
    put_back(fresh.optimizer, order, Kept(saved.tensors, {}))
    again = kept(fresh.optimizer, order)
    assert all(torch.equal(saved.tensors[name], again.tensors[name]) for name in saved.tensors)
    with pytest.raises(CheckpointError, match="does not train"):
        put_back(fresh.optimizer, order, Kept({"nothing/step": torch.tensor(1.0)}, {}))


@pytest.mark.parametrize(
    ("name", "options", "decay", "says"),
    [
        ("adamm", {}, 0.0, ["optim.name is 'adamm'", "Did you mean 'adamw'?", "torch.optim.Adafactor"]),
        ("torch.optim.Adafactr", {}, 0.0, ["Adafactr", "Did you mean 'Adafactor'?"]),
        ("torch.optim.lr_scheduler", {}, 0.0, ["module, no class"]),
        ("no_such_module.Optimizer", {}, 0.0, ["no_such_module"]),
        ("adamw", {"beta": [0.9, 0.9]}, 0.0, ["optim.options.beta", "Did you mean 'betas'?"]),
        ("adamw_8bit", {"beta": [0.9, 0.9]}, 0.0, ["optim.options.beta", "Did you mean 'betas'?"]),
        ("sgd", {"betas": [0.9, 0.9]}, 0.0, ["optim.options.betas", "There are: momentum"]),
        ("adamw", {"betas": [0.9]}, 0.0, ["optim.options.betas is [0.9]", "a list of 2"]),
        ("adamw_8bit", {"betas": 0.9}, 0.0, ["optim.options.betas is 0.9", "a list of 2"]),
        ("adamw", {"eps": "small"}, 0.0, ["optim.options.eps is 'small'", "a number"]),
        ("sgd", {"nesterov": 1}, 0.0, ["optim.options.nesterov is 1", "true or false"]),
        ("adamw", {"lr": 0.1}, 0.0, ["optim.options.lr", "set optim.lr"]),
        ("adamw", {"weight_decay": 0.1}, 0.0, ["set optim.weight_decay"]),
        ("torch.optim.Rprop", {}, 0.1, ["optim.weight_decay is 0.1", "Set it to 0"]),
        ("adamw", {"betas": [0.9, 1.5]}, 0.0, ["fails on a matrix and a vector", "Invalid beta"]),
        ("torch.optim.LBFGS", {}, 0.0, ["LBFGS", "fails on a matrix and a vector"]),
        ("torch.optim.SparseAdam", {}, 0.0, ["SparseAdam", "fails on a matrix and a vector"]),
        (f"{ODD}:Forgetful", {}, 0.0, ["does not go on as it was", "self.state"]),
        (f"{ODD}:Unkeepable", {}, 0.0, ["can't be kept in checkpoints", "matrix/memory", "neither a tensor"]),
        (f"{ODD}:not_an_optimizer", {}, 0.0, ["makes a list, which is no torch.optim.Optimizer"]),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_loads(name, options, decay, says):
    with pytest.raises(ConfigError) as caught:
        rehearse(choose(name, options, decay), 1e-3)
    assert all(part in str(caught.value) for part in says), str(caught.value)
