"""The model being trained: hidden states, logits and logprobs, its adapter, and its weights by name.

Axes: B rows (one completion each), T completion positions, L positions of a sequence, E hidden size.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from muster.attention import NAME as SHARED_PREFIX
from muster.attention import Layout, unpackable_because
from muster.batch import Batch, pack, pad
from muster.errors import ModelError
from muster.logprobs import pad_kept, token_stats

Weights = dict[str, Tensor]


class Scores(NamedTuple):
    """Per token, zero at padding, in nats."""

    logprobs: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]


class Policy:
    """A causal language model whose trainable parameters are the policy.

    Never in training mode: there is no dropout in any pass.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_tokens: int,
        pack_prefixes: bool = True,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.autocast = autocast
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        if not isinstance(base, PreTrainedModel):
            raise ModelError(f"{type(base).__name__} is not a transformers model; Muster can't train it.")
        self.base = base
        self.backbone: nn.Module = base.base_model
        head = base.get_output_embeddings()
        if head is None:
            raise ModelError(f"{type(base).__name__} has no language-model head; Muster can't train it.")
        self.head: nn.Module = head
        self.num_vocab: int = head.weight.shape[0]
        supported = bool(getattr(base, "_supports_attention_backend", False))
        self.plain_because = (
            unpackable_because(base.config.get_text_config(), max_tokens, supported)
            if pack_prefixes
            else "packing is switched off"
        )
        """Why prompts aren't shared within a group; None where they are."""
        if self.plain_because is None:
            base.set_attn_implementation(SHARED_PREFIX)
        model.eval()

    @property
    def packs(self) -> bool:
        """Whether prompts are shared within a group."""
        return self.plain_because is None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that training changes, by name; tied ones once."""
        return ((name, param) for name, param in self.model.named_parameters() if param.requires_grad)

    def snapshot(self) -> Weights:
        """A copy of the trainable parameters: a frozen policy to come back to."""
        return {name: param.detach().clone() for name, param in self.trainable()}

    @contextmanager
    def using(self, weights: Mapping[str, Tensor] | None) -> Generator[None]:
        """Runs the model on other trainable weights without a second model; None changes nothing.

        Storages are swapped, not copied, and swapped back also when the body raises, so the trained
        weights are the same bits afterwards.
        """
        current = {name: param.data for name, param in self.trainable()}
        if weights is not None and weights.keys() != current.keys():
            odd = sorted(weights.keys() ^ current.keys())[:3]
            raise ModelError(f"weights and model differ in their trainable parameters, for example {odd}")
        try:
            for name, param in self.trainable():
                param.data = current[name] if weights is None else weights[name]
            yield
        finally:
            for name, param in self.trainable():
                param.data = current[name]

    def hidden(
        self, ids: Int[Tensor, "R L"], positions: Int[Tensor, "R L"], layout: Layout
    ) -> Float[Tensor, "R L E"]:
        """Final hidden states under a shared-prefix layout."""
        # A 4-D mask passes through transformers untouched, so no square mask is built.
        placeholder = torch.empty(1, 1, 1, 1, device=ids.device)
        with self.precision():
            return self.backbone(
                input_ids=ids,
                position_ids=positions,
                attention_mask=placeholder,
                layout=layout,
                use_cache=False,
            ).last_hidden_state

    def logits(self, hidden: Float[Tensor, "*N E"]) -> Float[Tensor, "*N V"]:
        """The model's own head on hidden states, scaling and soft-capping included, in float32."""
        with self.precision():
            logits = self.head(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return _rescale(logits, self.base.config.get_text_config())

    def score(
        self, batch: Batch, *, temperature: float, entropy_gradient: bool = False, plain: bool = False
    ) -> Scores:
        """Logprobs and entropies of the batch's tokens at a temperature; zero where the mask is False.

        `plain` computes padded rows also where prompts could be shared: the slow path to check against.
        """
        batch_mask = batch.mask.to(self.device)
        forward = self._packed_hidden if self.packs and not plain else self._padded_hidden
        hidden, predictors = forward(batch)
        kept = None
        if batch.kept is not None:
            tokens = batch.mask.nonzero().tolist()
            kept = pad_kept([(batch.kept[row] or ())[position] for row, position in tokens])
            kept = kept.to(self.device)
        stats = token_stats(
            self.logits,
            hidden.index_select(0, predictors[batch_mask]),
            batch.ids.to(self.device)[batch_mask],
            temperature=temperature,
            num_vocab=self.num_vocab,
            kept=kept,
            entropy_gradient=entropy_gradient,
        )
        return Scores(*(_spread(values, batch_mask) for values in stats))

    def _packed_hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        packed = pack(batch)
        hidden = self.hidden(packed.ids.to(self.device), packed.positions.to(self.device), packed.layout)
        return hidden[0], packed.predictors.to(self.device)

    def _padded_hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        padded = pad(batch)
        positions = torch.arange(padded.ids.shape[1], device=self.device).expand(len(batch), -1)
        with self.precision():
            hidden = self.backbone(
                input_ids=padded.ids.to(self.device),
                attention_mask=padded.attention_mask.to(self.device),
                position_ids=positions,
                use_cache=False,
            ).last_hidden_state
        return hidden.flatten(0, 1), padded.predictors.to(self.device)

    def precision(self) -> "torch.autocast | nullcontext[None]":
        """Computes in the lower precision that the run asked for, weights staying as they are."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def _rescale(logits: Tensor, config: object) -> Tensor:
    """What some families do to logits after the head; checked against the whole model at start."""
    multiplier = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)
    cap = getattr(config, "final_logit_softcapping", None)
    if multiplier is not None:
        logits = logits * multiplier
    if divisor is not None:
        logits = logits / divisor
    return logits if cap is None else cap * torch.tanh(logits / cap)


def enable_gradient_checkpointing(policy: Policy) -> None:
    """Recomputes each layer's activations in the backward pass: less memory, about a fifth slower.

    transformers checkpoints a layer only in training mode; only the layers' own flag is set, so that
    dropout inside them stays off.
    """
    policy.base.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    for module in policy.base.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
