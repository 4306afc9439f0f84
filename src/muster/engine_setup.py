"""The engine that a configuration names, with its own options."""

import os
from collections.abc import Callable

import torch

from muster.algo.objectives import vespo
from muster.algo.ratios import no_correction
from muster.algo.recipes import Recipe
from muster.config import Config
from muster.dist import world_size
from muster.engines.base import Engine
from muster.engines.local import LocalEngine
from muster.engines.options import LocalOptions, VllmOptions, read_options
from muster.engines.process import SamplerProcess
from muster.engines.queued import Apart, Queued
from muster.engines.vllm import VllmEngine, refuse_unknown_sets
from muster.errors import ConfigError, EngineError
from muster.policy import Policy


def engine_options(config: Config) -> LocalOptions | VllmOptions:
    """The engine's own options, and that what is sampled can be trained on; ConfigError where not."""
    if config.engine.ahead and world_size() > 1:
        raise ConfigError(
            f"engine.ahead is {config.engine.ahead} in a run of {world_size()} processes, each of which "
            "would start another one to sample. Train in one process, or leave engine.ahead at 0."
        )
    if config.engine.kind == "local":
        return _local_options(config)
    if config.model.quantize is not None:
        raise ConfigError(
            f"engine.kind is 'vllm' and model.quantize is {config.model.quantize!r}: servers would sample on "
            "the base in full precision, another policy than the one that is trained. Leave one of them out."
        )
    options, chosen = read_options(VllmOptions, config.engine.options), config.sampling
    refuse_unknown_sets(top_k=chosen.top_k, top_p=chosen.top_p, min_p=chosen.min_p)
    engine_key(options)
    return options


def _local_options(config: Config) -> LocalOptions:
    options = read_options(LocalOptions, config.engine.options)
    if options.threads is not None and not config.engine.ahead:
        raise ConfigError(
            f"engine.options.threads is {options.threads}, and nothing is sampled in a process of its own. "
            "Set engine.ahead too, or run.threads instead."
        )
    return options


def refuse_uncorrected(recipe: Recipe, ahead: int) -> None:
    """Refuses a recipe that would take completions by old weights for those of the policy."""
    objective = getattr(recipe.objective, "func", recipe.objective)
    # VESPO's ratio is to the sampler itself.
    if ahead and recipe.correction is no_correction and objective is not vespo:
        raise ConfigError(
            f"engine.ahead is {ahead}, so completions are by weights up to {ahead} steps old, and "
            'algo.correction is "none": they would be taken for the policy\'s own. Set algo.correction = '
            '"truncate", or leave engine.ahead at 0.'
        )


def in_turn(config: Config) -> Config:
    """The same with nothing sampled ahead: for whatever samples and has nothing else to do meanwhile."""
    options = {name: value for name, value in config.engine.options.items() if name != "threads"}
    engine = config.engine.model_copy(update={"ahead": 0, "options": options})
    return config.model_copy(update={"engine": engine}) if config.engine.ahead else config


def is_served(engine: Engine) -> bool:
    """Servers sample, which compute in a precision and by kernels of their own."""
    return isinstance(engine.apart if isinstance(engine, Queued) else engine, VllmEngine)


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
        served = VllmEngine(policy, options, key=engine_key(options), progress=progress)
        return _queued(served, policy) if config.engine.ahead else served
    if config.engine.ahead:
        return _queued(_sampler_process(config, options, policy, progress), policy)
    engine = LocalEngine(policy, max_rows=options.max_rows, progress=progress)
    engine.tune(_num_rows(config), _products(options))
    return engine


def _queued(apart: Apart, policy: Policy) -> Queued:
    return Queued(apart, policy.trainable)


def _num_rows(config: Config) -> int:
    return config.sampling.prompts_per_step * config.sampling.group_size


def measures_products(config: Config) -> bool:
    """Whether the ways to compute on a CPU are those that are fastest here, instead of one by name."""
    options = engine_options(config)
    return not isinstance(options, LocalOptions) or options.products == "measured"


def _products(options: LocalOptions) -> str | None:
    return None if options.products == "measured" else options.products


def _sampler_process(
    config: Config, options: LocalOptions, policy: Policy, progress: Callable[[int, int], None]
) -> SamplerProcess:
    """A process that samples with the run's model, on a CPU with threads that this one has no more."""
    num_threads = torch.get_num_threads()
    apart = options.threads or max(1, num_threads // 2)
    if policy.device.type == "cpu":
        torch.set_num_threads(max(1, num_threads - apart))
    weights = sum(param.numel() * param.element_size() for _, param in policy.trainable())
    process = SamplerProcess(
        {
            "model": config.model.model_dump_json(),
            "seed": config.run.seed,
            "max_rows": options.max_rows,
            "num_rows": _num_rows(config),
            "products": _products(options),
            "threads": apart,
        },
        # Those of each step that is sampled ahead, and the newest.
        room=(config.engine.ahead + 1) * weights,
        progress=progress,
    )
    if process.quantized != policy.quantized:
        process.close()
        raise EngineError(
            f"the process that samples ahead quantised the base otherwise than this one: its digest is "
            f"{process.quantized}, here it is {policy.quantized}. Leave engine.ahead at 0."
        )
    return process
