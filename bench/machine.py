"""The rate at which this machine does a model's matrix products and nothing else.

Of few rows every kind of product is timed that Muster knows, weights laid out beforehand where that is the
fastest; of many rows both orientations, `x @ weight.T` and `(weight @ x.T).T`. The fastest counts.
"""

import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor, nn

from muster.engines.products import KINDS, kinds_here

Item = TypeVar("Item")

REPEATS = 3
"""Timings of a pass over the layers; the fastest counts."""
SAMPLED = 3
"""Layers of a shape that are timed for an update: with a thousand rows and more, each takes as long."""


def decode_products_s(model: nn.Module, rows: int) -> float:
    """Seconds of all linear layers, head included, for one token in each of that many rows.

    All of the model's own weights take their turn: with few rows, reading them is what takes time.
    """
    total = 0.0
    for weights in _by_shape(linear_weights(model)):
        x = torch.randn(rows, weights[0].shape[1])
        total += min(_products_s(kind, weights, x) for kind in kinds_here())
    return total


def _products_s(kind: str, weights: list[Tensor], x: Tensor) -> float:
    """Seconds of one pass over the weights by this kind of product, at its best of some repeats."""
    products = [KINDS[kind](weight, None) for weight in weights]
    with torch.no_grad():
        return min(_pass_s(lambda product: product(x), products) for _ in range(REPEATS))


def update_products_s(model: nn.Module, head: nn.Module, rows: int, head_rows: int) -> float:
    """Seconds of an update's products: forward, gradient of the input, gradient of the weight.

    Every layer sees `rows` rows; the head only those that predict a token that counts.
    """
    head_place = next(head.parameters()).data_ptr()
    total = 0.0
    for weights in _by_shape(linear_weights(model)):
        is_head = weights[0].data_ptr() == head_place
        count = head_rows if is_head else rows
        x, gradient = torch.randn(count, weights[0].shape[1]), torch.randn(count, weights[0].shape[0])
        few = weights[:SAMPLED]
        seconds = (
            _fastest(lambda w, x=x: torch.mm(x, w.t()), lambda w, x=x: torch.mm(w, x.t()), weights=few)
            + _fastest(
                lambda w, g=gradient: torch.mm(g, w),
                lambda w, g=gradient: torch.mm(w.t(), g.t()),
                weights=few,
            )
            + _fastest(
                lambda _, g=gradient, x=x: torch.mm(g.t(), x),
                lambda _, g=gradient, x=x: torch.mm(x.t(), g),
                weights=few,
            )
        )
        total += seconds * len(weights) / len(few)
    return total


def linear_weights(model: nn.Module) -> list[Tensor]:
    """The weights of all linear layers; the head last."""
    layers = [module.weight.detach() for module in model.modules() if isinstance(module, nn.Linear)]
    assert layers, "the model has no linear layer"
    return layers


def _by_shape(weights: list[Tensor]) -> Iterable[list[Tensor]]:
    ordered = sorted(weights, key=lambda weight: tuple(weight.shape))
    return [list(members) for _, members in groupby(ordered, key=lambda weight: tuple(weight.shape))]


def _fastest(*ways: Callable[[Tensor], object], weights: list[Tensor]) -> float:
    """Seconds of one pass over the weights, by the faster way, at its best of some repeats."""
    with torch.no_grad():
        return min(_pass_s(way, weights) for way in ways for _ in range(REPEATS))


def _pass_s(way: Callable[[Item], object], items: list[Item]) -> float:
    start = time.perf_counter()
    for item in items:
        way(item)
    return time.perf_counter() - start
