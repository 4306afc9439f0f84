"""What a model and a run are, as numbers: counted, not estimated."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Model:
    """A policy without its weights."""

    name: str
    """As `model.path` has it."""
    num_params: int
    """Of the model without an adapter; those that are tied count once."""
    layer_params: int
    """In the products of its layers: each is multiplied once for every token."""
    head_params: int
    """In the product that gives logits."""
    adapter_params: int
    """Of a trained adapter; 0 where all weights are trained."""
    trained_params: int
    trained_tensors: int
    rest_params: int
    """Beside the layers: embedding, norm, head."""
    num_layers: int
    weight_bytes: int
    """Of all weights as a run keeps them, the adapter's included."""
    read_bytes: int
    """That pass through memory for one token of every row while sampling."""
    state_bytes: int
    """Of the optimizer."""
    activation_bytes: int
    """That one token of a training pass keeps until the backward pass."""
    cache_bytes: int
    """Keys and values of one token, as a rank keeps them while it samples."""
    cache_numbers: int
    """The same as numbers, which a server keeps in the precision of the computation."""
    pair_flops: int
    """Of one token's attention to another, in all layers."""
    num_vocab: int
    itemsize: int
    """Bytes of a number that is computed with."""
    shares_prompts: bool
    """A prompt is computed once for its group, in training as in sampling."""

    @property
    def compute(self) -> str:
        """The precision of the computation."""
        return "bfloat16" if self.itemsize == 2 else "float32"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step of a run has to do."""

    prompts: int
    """Of a step."""
    group_size: int
    prompt_tokens: float
    """Mean over the run's data."""
    longest_prompt: int
    max_tokens: int
    """Limit of a completion."""
    updates: int = 1
    """Optimizer steps in a step."""
    passes: int = 1
    """How often a step's rollouts go forward and backward."""
    scored: int = 0
    """How often they go forward alone: old policy, reference, gate."""
    copies: int = 0
    """Of the trained weights that are kept: a reference, weights that lag."""
    divides: bool = False
    """Ranks divide weights, gradients and the optimizer's state among them."""
    recomputes: bool = False
    """Gradient checkpointing: layers go forward again in the backward pass."""
    max_rows: int = 128
    """Rollouts that a rank samples side by side."""
    budget_tokens: int | None = None
    """Of one forward pass in training; None: what fits."""

    @property
    def rollouts(self) -> int:
        """Of a step."""
        return self.prompts * self.group_size
