"""The engine that a configuration names, with its own options."""

import os
from collections.abc import Callable

from muster.config import Config
from muster.dist import world_size
from muster.engines.base import Engine
from muster.engines.local import LocalEngine
from muster.engines.options import LocalOptions, VllmOptions, read_options
from muster.engines.vllm import VllmEngine, refuse_unknown_sets
from muster.errors import ConfigError
from muster.policy import Policy


def engine_options(config: Config) -> LocalOptions | VllmOptions:
    """The engine's own options, and that what is sampled can be trained on; ConfigError where not."""
    if config.engine.kind == "local":
        return read_options(LocalOptions, config.engine.options)
    if world_size() > 1:
        raise ConfigError(
            f"engine.kind is 'vllm' in a run of {world_size()} processes, each of which would load weights "
            'of its own into the servers. Train in one process, or set engine.kind = "local".'
        )
    if config.model.quantize is not None:
        raise ConfigError(
            f"engine.kind is 'vllm' and model.quantize is {config.model.quantize!r}: servers would sample on "
            "the base in full precision, another policy than the one that is trained. Leave one of them out."
        )
    options, chosen = read_options(VllmOptions, config.engine.options), config.sampling
    refuse_unknown_sets(top_k=chosen.top_k, top_p=chosen.top_p, min_p=chosen.min_p)
    engine_key(options)
    return options


def engine_key(options: VllmOptions) -> str | None:
    """The servers' API key, from the environment; None where no variable is named."""
    if options.key_env is None:
        return None
    key = os.environ.get(options.key_env, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"engine.options.key_env names {options.key_env}, which holds no key, or is not set."
        )
    return key


def make_engine(config: Config, policy: Policy, progress: Callable[[int, int], None]) -> Engine:
    """The engine that the configuration names, with its own options; `close` it at the end.

    The local one is tuned to the run's rows.
    """
    options = engine_options(config)
    if isinstance(options, VllmOptions):
        return VllmEngine(policy, options, key=engine_key(options), progress=progress)
    engine = LocalEngine(policy, max_rows=options.max_rows, progress=progress)
    num_rows = config.sampling.prompts_per_step * config.sampling.group_size
    engine.tune(num_rows, None if options.products == "measured" else options.products)
    return engine
