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
from transformers import PreTrainedModel

from muster.engines.products import KINDS, kinds_here
from workloads import NEW_TOKENS

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


def sampling_products_s(model: PreTrainedModel, num_prompts: int, prompt_tokens: int, rows: int) -> float:
    """Seconds of the products of sampling: each prompt once, then every further token of every row."""
    prompts = forward_products_s(model, num_prompts * prompt_tokens, num_prompts)
    return prompts + (NEW_TOKENS - 1) * decode_products_s(model, rows)


def _products_s(kind: str, weights: list[Tensor], x: Tensor) -> float:
    """Seconds of one pass over the weights by this kind of product, at its best of some repeats."""
    products = [KINDS[kind](weight, None) for weight in weights]
    with torch.no_grad():
        return min(_pass_s(lambda product: product(x), products) for _ in range(REPEATS))


def forward_products_s(model: PreTrainedModel, rows: int, head_rows: int) -> float:
    """Seconds of a forward pass's products: every layer sees `rows` rows, the head `head_rows`."""
    return _products_of(model, rows, head_rows, kinds=1)


def update_products_s(model: PreTrainedModel, rows: int, head_rows: int, *, frozen: bool = False) -> float:
    """Seconds of an update's products: forward, gradient of the input, gradient of the weight.

    Every layer sees `rows` rows; the head only those that predict a token that counts. `frozen` weights
    have no gradient.
    """
    return _products_of(model, rows, head_rows, kinds=2 if frozen else 3)


def _products_of(model: PreTrainedModel, rows: int, head_rows: int, *, kinds: int) -> float:
    """Seconds over all layers of the first so many kinds: forward, gradient of input, gradient of weight."""
    head = model.get_output_embeddings()
    assert head is not None, "the model has no head"
    total = 0.0
    for weights in _by_shape(linear_weights(model)):
        is_head = weights[0].data_ptr() == head.weight.data_ptr()
        total += _of_layers(weights, head_rows if is_head else rows, kinds)
    return total


def _of_layers(weights: list[Tensor], rows: int, kinds: int) -> float:
    x, gradient = torch.randn(rows, weights[0].shape[1]), torch.randn(rows, weights[0].shape[0])
    ways: list[tuple[Callable[[Tensor], object], Callable[[Tensor], object]]] = [
        (lambda w: torch.mm(x, w.t()), lambda w: torch.mm(w, x.t())),
        (lambda w: torch.mm(gradient, w), lambda w: torch.mm(w.t(), gradient.t())),
        (lambda _: torch.mm(gradient.t(), x), lambda _: torch.mm(x.t(), gradient)),
    ]
    few = weights[:SAMPLED]
    return len(weights) / len(few) * sum(_fastest(*pair, weights=few) for pair in ways[:kinds])


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
