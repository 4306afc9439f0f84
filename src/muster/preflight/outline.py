"""What costs on other machines follow from: counted on the model without its weights, and on the data.

The model is built on torch's "meta" device, which has shapes and no memory: one that no machine here could
hold is counted exactly.
"""

from collections.abc import Iterable
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from muster import pretrained
from muster.adapters import add_lora
from muster.assemble import Say, build_recipe, chosen_optimizer, encode
from muster.config import Config
from muster.engine_setup import engine_options
from muster.engines.options import LocalOptions
from muster.errors import ConfigError
from muster.inputs import load_training
from muster.memory import activation_bytes
from muster.optimizer import rehearse
from muster.policy import unshared_because
from muster.quantized import quantized_bytes
from muster.scaling import Model, Work

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def work_of(config: Config, say: Say) -> Work:
    """What a step of the run has to do; the prompts' lengths are those of its data."""
    if config.data.environment is not None:
        raise ConfigError(
            "data.environment has turns whose number and length only a run shows, and --devices counts one "
            "answer to a prompt. Leave --devices out."
        )
    if config.engine.kind == "vllm_inside":
        raise ConfigError(
            "engine.kind is 'vllm_inside', and --devices counts sampling on the training weights, or on "
            'servers with devices of their own. Leave it out, or set engine.kind = "local" or "vllm".'
        )
    algo, sampling, options = config.algo, config.sampling, engine_options(config)
    tokenizer = pretrained.load_tokenizer(config.model.path, say)
    lengths = [len(item.ids) for item in encode(config, tokenizer, load_training(config), say)]
    updates, has_reference = algo.minibatches * algo.passes, algo.kl_coef > 0
    lags = sampling.sync_every > 1
    has_gate = build_recipe(config).gate.threshold is not None
    return Work(
        prompts=sampling.prompts_per_step,
        group_size=sampling.group_size,
        prompt_tokens=sum(lengths) / len(lengths),
        longest_prompt=max(lengths),
        max_tokens=sampling.max_tokens,
        updates=updates,
        passes=algo.passes,
        scored=(updates > 1 or lags) + has_reference + has_gate * algo.passes,
        copies=has_reference + 2 * lags + 2 * config.engine.ahead,
        divides=config.run.layout == "shard",
        recomputes=config.model.gradient_checkpointing,
        max_rows=(options if isinstance(options, LocalOptions) else LocalOptions()).max_rows,
        budget_tokens=config.run.budget_tokens,
    )


def model_of(config: Config, say: Say) -> Model:
    """The policy that a configuration names, counted; ConfigError for a mixture of experts."""
    settings = config.model
    base = pretrained.load_outline(settings.path, say)
    own = base.config.get_text_config()
    _refuse_experts(settings.path, own)
    head = base.get_output_embeddings()
    assert head is not None, "a causal language model"
    layers = [m for m in base.modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]
    layer_params, head_params = _count(m.weight for m in layers), _count([head.weight])
    num_params, num_tensors = _count(base.parameters()), len(list(base.parameters()))
    blocks = [m for m in base.modules() if isinstance(m, GradientCheckpointingLayer)]
    in_blocks = sum(_count(block.parameters()) for block in blocks)
    stored = 4 * layer_params if settings.quantize is None else quantized_bytes(base, settings.quantize)
    adapter = _adapter_shapes(config, base)
    adapter_params = sum(map(prod, adapter))
    trained = adapter_params or num_params
    itemsize = 2 if settings.dtype == "bfloat16" else 4
    return Model(
        name=settings.path,
        num_params=num_params,
        layer_params=layer_params,
        head_params=head_params,
        adapter_params=adapter_params,
        trained_params=trained,
        trained_tensors=len(adapter) or num_tensors,
        rest_params=num_params - in_blocks,
        num_layers=max(1, len(blocks)),
        weight_bytes=4 * (num_params - layer_params + adapter_params) + stored,
        read_bytes=_read_bytes(config, stored, layer_params, head_params, adapter_params),
        state_bytes=round(4 * trained * rehearse(chosen_optimizer(config), config.optim.lr).state_share),
        activation_bytes=activation_bytes(own, settings.gradient_checkpointing, itemsize),
        cache_bytes=_cached(own, itemsize, turned=4),
        cache_numbers=_cached(own, 1, turned=1),
        pair_flops=2 * own.num_hidden_layers * own.num_attention_heads * sum(_head_sizes(own)),
        num_vocab=int(head.weight.shape[0]),
        itemsize=itemsize,
        shares_prompts=unshared_because(base, settings.max_tokens) is None,
    )


def _refuse_experts(path: str, config: PreTrainedConfig) -> None:
    for name in _EXPERTS:
        if (count := getattr(config, name, None) or 0) > 1:
            raise ConfigError(
                f"model.path {path!r} has {count} experts ({name}), of which a token takes a few; --devices "
                "counts models that multiply every weight for every token. Check it without --devices."
            )


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _adapter_shapes(config: Config, base: PreTrainedModel) -> list[tuple[int, ...]]:
    """Shapes of the adapter's tensors, from its own file or put on the model's shapes; none without one."""
    if config.model.adapter is not None:
        file = Path(config.model.adapter).expanduser() / "adapter_model.safetensors"
        if not file.is_file():
            raise ConfigError(f"model.adapter is {config.model.adapter!r}, which holds no {file.name}.")
        with safe_open(file, "pt") as opened:
            return [tuple(opened.get_slice(name).get_shape()) for name in opened.keys()]  # noqa: SIM118
    if (lora := config.model.lora) is None:
        return []
    with torch.device("meta"):
        adapted = add_lora(base, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=0)
    return [tuple(param.shape) for param in adapted.parameters() if param.requires_grad]


def _read_bytes(config: Config, stored: int, layers: int, head: int, adapter: int) -> int:
    """Bytes that one pass over all weights moves while sampling.

    In bfloat16 the weights that are trained are cast once a call and read so; frozen ones are read, written
    and read again for every pass, and those in few bits are taken apart in float32 first.
    """
    is_low = config.model.dtype == "bfloat16"
    whole = 4 if not is_low else 2 if not adapter else 8
    of_layers = whole * layers if config.model.quantize is None else stored + (12 if is_low else 8) * layers
    return of_layers + whole * head + (2 if is_low else 4) * adapter


def _cached(config: PreTrainedConfig, itemsize: int, *, turned: int) -> int:
    """Bytes of a token's keys and values; keys that are turned by their position become float32 by it."""
    key, value = _head_sizes(config)
    has_turns = getattr(config, "rope_parameters", None) is not None
    return (
        config.num_hidden_layers
        * _num_kv(config)
        * ((turned if has_turns else itemsize) * key + itemsize * value)
    )


def _num_kv(config: PreTrainedConfig) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _head_sizes(config: PreTrainedConfig) -> tuple[int, int]:
    """Of a key and of a value; they differ in multi-head latent attention."""
    size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    return int(getattr(config, "qk_head_dim", None) or size), int(getattr(config, "v_head_dim", None) or size)
