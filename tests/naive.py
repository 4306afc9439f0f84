"""What everything clever is compared with: one sequence at a time through the whole model, no cache."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from muster.batch import Batch, Row, collate
from muster.policy import Policy
from muster.records import Completion
from tiny import tiny_model, tiny_tokenizer


def exact_model(family: str, **overrides: Any) -> PreTrainedModel:
    """A tiny model in float64 throughout: the families' own norms compute in float32 in any case."""
    model = tiny_model(family, dtype=torch.float64, **overrides)
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm") or kind == "CohereLayerNorm":
            module.forward = partial(_norm, module, kind == "CohereLayerNorm", kind.startswith("Gemma"))
    return model


def exact_policy(family: str, *, max_tokens: int = 256, **overrides: Any) -> Policy:
    """A policy over such a model."""
    return Policy(exact_model(family, **overrides), tiny_tokenizer(), max_tokens=max_tokens)


def _norm(module: Any, is_centered: bool, adds_one: bool, hidden: Tensor) -> Tensor:
    if is_centered:
        hidden = hidden - hidden.mean(dim=-1, keepdim=True)
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    normed = hidden * torch.rsqrt(hidden.square().mean(dim=-1, keepdim=True) + eps)
    return normed * (1 + module.weight if adds_one else module.weight)


def make_batch(groups: Sequence[tuple[int, Sequence[int]]], *, seed: int = 0, num_vocab: int = 259) -> Batch:
    """Random tokens: a prompt length and its completions' lengths for each group."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, num_vocab, (count,), generator=generator).tolist())

    def logprobs(count: int) -> tuple[float, ...]:
        return tuple((-5 - torch.rand(count, generator=generator)).tolist())

    prompts = [tokens(length) for length, _ in groups]
    rows = [
        Row(
            number,
            Completion(
                ids=tokens(length), sampler_logprobs=logprobs(length), finish_reason="stop", version=0
            ),
            float(torch.randn((), generator=generator)),
        )
        for number, (_, lengths) in enumerate(groups)
        for length in lengths
    ]
    return collate(prompts, rows)


def naive_scores(model: PreTrainedModel, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies [B T] in the model's own precision, with gradient; 0 at padding."""
    logprobs, entropies = [], []
    for row in range(len(batch)):
        prompt = batch.prompts[int(batch.group[row])]
        completion = batch.ids[row, : int(batch.lengths[row])].tolist()
        ids = torch.tensor([[*prompt, *completion]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1] / temperature
        table = logits.log_softmax(dim=-1)
        missing = batch.ids.shape[1] - len(completion)
        picked = torch.stack([table[t, token] for t, token in enumerate(completion)])
        logprobs.append(torch.cat([picked, picked.new_zeros(missing)]))
        entropies.append(torch.cat([-(table.exp() * table).sum(dim=-1), picked.new_zeros(missing)]))
    return torch.stack(logprobs), torch.stack(entropies)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Gradient of each parameter that takes part, by name."""
    params = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    found = torch.autograd.grad(loss, [param for _, param in params], allow_unused=True)
    return {name: grad for (name, _), grad in zip(params, found, strict=True) if grad is not None}


def assert_equal_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor], rtol: float = 1e-9) -> None:
    """Same parameters, and each gradient within rtol of its largest entry."""
    assert ours.keys() == theirs.keys()
    assert ours
    for name, grad in ours.items():
        scale = float(theirs[name].abs().max())
        assert float((grad - theirs[name]).abs().max()) <= rtol * max(scale, 1e-3), name
