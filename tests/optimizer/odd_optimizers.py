"""Optimizers that a user might bring."""

import torch
from torch.optim import Optimizer

# pyright: reportIncompatibleMethodOverride=false


class Signs(Optimizer):
    """Moves each weight along the sign of a running mean, remembered in tensors, a number and a list."""

    def __init__(self, params, lr=0.1, *, decay: float = 0.5):
        super().__init__(params, {"lr": lr, "decay": decay, "num_steps": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["num_steps"] += 1
            for param in group["params"]:
                state = self.state[param]
                mean = state.setdefault("mean", torch.zeros_like(param))
                mean.mul_(group["decay"]).add_(param.grad)
                state["norms"] = [*state.get("norms", []), mean.norm()]
                state["largest"] = max(state.get("largest", 0.0), float(mean.abs().max()))
                size = group["lr"] * len(state["norms"]) * group["num_steps"] * state["largest"]
                param.add_(mean.sign(), alpha=-size)


class Forgetful(Signs):
    """Keeps a count where no checkpoint looks."""

    count = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            for param in group["params"]:
                param.add_(param.grad, alpha=-group["lr"] * self.count)


class Unkeepable(Signs):
    """Holds an object that no JSON can."""

    @torch.no_grad()
    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            self.state[param]["memory"] = object()


def not_an_optimizer(params, lr):
    """A function that makes something else."""
    return [params, lr]
