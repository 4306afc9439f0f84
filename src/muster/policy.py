"""The model being trained: hidden states, logits and logprobs, its adapter, and its weights by name.

Axes: B rows (one completion each), T completion positions, L positions of a sequence, E hidden size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from muster.attention import NAME as SHARED_PREFIX
from muster.attention import (
    GroupSpan,
    Layout,
    PackedLayout,
    PrefillLayout,
    unpackable_because,
)
from muster.batch import Batch, pack, pad
from muster.cache import DecodeCache
from muster.devices import computing_in, moved
from muster.dist import world_size
from muster.errors import ConfigError, ModelError
from muster.frozen import Ways
from muster.holding import Holding, Replica
from muster.lean import slim
from muster.liger import Pieces
from muster.logprobs import pad_kept, token_stats
from muster.quantized import digest
from muster.sharded import Shards

Weights = dict[str, Tensor]


class Scores(NamedTuple):
    """Per token, zero at padding, in nats."""

    logprobs: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    is_likeliest: Bool[Tensor, "B T"]
    """No other token was likelier; False at padding."""


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
        if head is None or self.backbone is base:
            raise ModelError(
                f"{type(base).__name__} is not a language-model head on top of a model of its own, "
                "so hidden states and logits can't be computed apart; Muster can't train it."
            )
        self.head: nn.Module = head
        self.num_vocab: int = head.weight.shape[0]
        self.quantized = digest(base)
        """Digest of the weights that are quantised; None where none are."""
        model.eval()
        self.held: Holding = Replica(model)
        """Where the weights are between passes."""
        self.ways, self.pieces = Ways(), Pieces()
        """How linear layers compute in training, and what kernels compute; kept by checkpoints."""
        slim(base, self.ways)
        self.plain_because = _share_prompts(base, max_tokens) if pack_prefixes else "packing is switched off"
        """Why prompts aren't shared within a group; None where they are."""

    @property
    def packs(self) -> bool:
        """Whether prompts are shared within a group."""
        return self.plain_because is None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that training changes, by name; tied ones once; where divided, this rank's rows."""
        return self.held.trainable()

    def snapshot(self) -> Weights:
        """A copy of the trainable parameters: a frozen policy to come back to."""
        return {name: param.detach().clone() for name, param in self.trainable()}

    def using(self, weights: Mapping[str, Tensor] | None) -> AbstractContextManager[None]:
        """Runs the model on other trainable weights without a second model; None changes nothing.

        The trained weights are the same bits afterwards, also when the body raises.
        """
        return self.held.using(weights)

    def whole(self) -> AbstractContextManager[None]:
        """All weights are here for as long as this lasts; where they are divided, every rank enters."""
        return self.held.whole()

    def hidden(
        self, ids: Int[Tensor, "R L"], positions: Int[Tensor, "R L"], layout: Layout
    ) -> Float[Tensor, "R L E"]:
        """Final hidden states under a shared-prefix layout."""
        with self.precision():
            return _shared_hidden(self.backbone, ids, positions, layout)

    def logits(self, hidden: Float[Tensor, "*N E"]) -> Float[Tensor, "*N V"]:
        """The model's own head on hidden states, scaling and soft-capping included, in float32."""
        with self.precision():
            logits = self.head(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return _rescale(logits, self.base.config.get_text_config())

    def states(self, batch: Batch, *, plain: bool = False) -> Float[Tensor, "N E"]:
        """Hidden states that predict the batch's tokens, N of them where the mask is True, row by row.

        `plain` computes padded rows also where prompts could be shared: the slow path to check against.
        """
        forward = self._packed_hidden if self.packs and not plain else self._padded_hidden

        def chosen() -> Tensor:
            hidden, predictors = forward(batch)
            return hidden.index_select(0, predictors[moved(batch.mask, self.device)])

        return self.held.through(chosen)

    def scores_of(
        self,
        states: Float[Tensor, "N E"],
        batch: Batch,
        *,
        temperature: float,
        entropy_gradient: bool = False,
    ) -> Scores:
        """Logprobs and entropies of the batch's tokens from their states; zero where the mask is False."""
        mask = moved(batch.mask, self.device)
        kept = _kept_sets(batch)
        stats = token_stats(
            self.logits,
            states,
            moved(batch.ids, self.device)[mask],
            temperature=temperature,
            num_vocab=self.num_vocab,
            kept=None if kept is None else moved(kept, self.device),
            entropy_gradient=entropy_gradient,
        )
        return Scores(*(_spread(values, mask) for values in stats))

    def score(
        self, batch: Batch, *, temperature: float, entropy_gradient: bool = False, plain: bool = False
    ) -> Scores:
        """Logprobs and entropies of the batch's tokens at a temperature; zero where the mask is False."""
        states = self.states(batch, plain=plain)
        return self.scores_of(states, batch, temperature=temperature, entropy_gradient=entropy_gradient)

    def _packed_hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        packed = pack(batch)
        ids, positions = moved(packed.ids, self.device), moved(packed.positions, self.device)
        return self.hidden(ids, positions, packed.layout)[0], moved(packed.predictors, self.device)

    def _padded_hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        padded = pad(batch)
        positions = torch.arange(padded.ids.shape[1], device=self.device).expand(len(batch), -1)
        with self.precision():
            hidden = self.backbone(
                input_ids=moved(padded.ids, self.device),
                attention_mask=moved(padded.attention_mask, self.device),
                position_ids=positions,
                use_cache=False,
            ).last_hidden_state
        return hidden.flatten(0, 1), moved(padded.predictors, self.device)

    def precision(self) -> "torch.autocast | nullcontext[None]":
        """Computes in the lower precision that the run asked for, weights staying as they are."""
        return computing_in(self.autocast, self.device)


def unshared_because(base: PreTrainedModel, max_tokens: int) -> str | None:
    """Why a model's attention can't share prompts, by its settings alone; None where they say it can."""
    # What SDPA can't compute (attention sinks, say), shared-prefix attention can't either.
    supported = all(getattr(base, f"_supports_{what}", False) for what in ("attention_backend", "sdpa"))
    return unpackable_because(base.config.get_text_config(), max_tokens, supported)


def _share_prompts(base: PreTrainedModel, max_tokens: int) -> str | None:
    """Makes the model's attention share prompts, or returns why it can't."""
    config = base.config.get_text_config()
    if reason := unshared_because(base, max_tokens):
        return reason
    base.set_attn_implementation(SHARED_PREFIX)
    # Some families promise to use the interface and don't, or use it twice in a layer: count.
    cache = DecodeCache(num_seats=1, max_tokens=1, device=base.device)
    cache.expect([1])
    ids = torch.zeros(1, 1, dtype=torch.long, device=base.device)
    with torch.no_grad():
        _shared_hidden(base.base_model, ids, ids, PrefillLayout(PackedLayout((GroupSpan(0, 1, ()),)), cache))
    uses, layers = cache.num_stored, int(config.num_hidden_layers)
    if uses == layers:
        return None
    base.set_attn_implementation("sdpa")
    return f"its {layers} layers use transformers' attention interface {uses} times instead of once each"


def _shared_hidden(backbone: nn.Module, ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    # A 4-D mask passes through transformers untouched, so no square mask is built.
    placeholder = torch.empty(1, 1, 1, 1, device=ids.device)
    return backbone(
        input_ids=ids, position_ids=positions, attention_mask=placeholder, layout=layout, use_cache=False
    ).last_hidden_state


def _kept_sets(batch: Batch) -> Tensor | None:
    """What truncated sampling left to choose from at each token that counts, padded."""
    if batch.kept is None:
        return None
    tokens = batch.mask.nonzero().tolist()
    return pad_kept([(batch.kept[row] or ())[position] for row, position in tokens])


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


def divide(policy: Policy) -> None:
    """Leaves this rank its rows of the weights alone; a process of its own holds them all, as before."""
    if world_size() > 1:
        policy.held = Shards(policy.model, policy.backbone, policy.head)


def enable_gradient_checkpointing(policy: Policy) -> None:
    """Recomputes each layer's activations in the backward pass: less memory, more time.

    transformers' own checkpointing needs layers in training mode, which would switch on the dropout
    that some families apply in a layer itself; so the layers' forwards are wrapped here instead.
    """
    layers = [module for module in policy.base.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"model.gradient_checkpointing is on, but {type(policy.base).__name__} has no layers that "
            "transformers can checkpoint. Switch it off; run.budget_tokens bounds memory too."
        )
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., object], *args: object, **kwargs: object) -> object:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    replay = partial(forward, **kwargs)
    return checkpoint(replay, *args, use_reentrant=False, preserve_rng_state=False)
