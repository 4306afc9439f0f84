"""The optimizer of a run: AdamW (arXiv:1711.05101) over what is trained."""

from torch.optim import AdamW, Optimizer

from muster.policy import Policy


def optimizer_order(policy: Policy) -> list[str]:
    """Names of the trainable parameters in the order in which the optimizer holds them."""
    matrices = [name for name, param in policy.trainable() if param.ndim > 1]
    return matrices + [name for name, param in policy.trainable() if param.ndim <= 1]


def make_optimizer(
    policy: Policy, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> Optimizer:
    """AdamW over the trainable parameters; biases and norms, being vectors, don't decay."""
    params = dict(policy.trainable())
    order = [params[name] for name in optimizer_order(policy)]
    groups = [
        {"params": [param for param in order if param.ndim > 1], "weight_decay": weight_decay},
        {"params": [param for param in order if param.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(
        [group for group in groups if group["params"]],
        lr=lr,
        betas=betas,
        eps=eps,
        # One pass over memory for each parameter instead of ten. By device alone, so that a resumed
        # run computes the same bits.
        fused=True if policy.device.type == "cpu" else None,
    )
