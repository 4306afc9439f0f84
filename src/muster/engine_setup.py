"""The engine that a configuration names, with its own options."""

import os
from collections.abc import Callable

import torch

from muster.algo.objectives import vespo
from muster.algo.ratios import no_correction
from muster.algo.recipes import Recipe
from muster.config import Config
from muster.devices import device_here
from muster.dist import is_first, world_size
from muster.engines.asking import refuse_unknown_sets
from muster.engines.base import Engine
from muster.engines.for_all import ForAll
from muster.engines.local import LocalEngine
from muster.engines.options import InsideOptions, LocalOptions, VllmOptions, read_options
from muster.engines.process import SamplerProcess
from muster.engines.queued import Apart, Queued
from muster.engines.vllm import VllmEngine
from muster.engines.vllm_core import require_vllm, start
from muster.engines.vllm_inside import VllmInside
from muster.errors import ConfigError, EngineError
from muster.memory import available_bytes
from muster.policy import Policy
from muster.vllm_needs import CPU_CACHE_GIB, Setting, model_for, rank_of, settings_for

Options = LocalOptions | VllmOptions | InsideOptions
GPU_SHARE = 0.3
"""Of a GPU's memory that vLLM takes in the process of the run, where nothing says otherwise."""


def engine_options(config: Config) -> Options:
    """The engine's own options, and that what is sampled can be trained on; ConfigError where not."""
    if config.engine.kind == "local":
        return _local_options(config)
    chosen = config.sampling
    if config.model.quantize is not None:
        raise ConfigError(
            f"engine.kind is {config.engine.kind!r} and model.quantize is {config.model.quantize!r}: vLLM "
            "would sample on the base in full precision, another policy than the one that is trained. Leave "
            "one of them out."
        )
    refuse_unknown_sets(top_k=chosen.top_k, top_p=chosen.top_p, min_p=chosen.min_p)
    if config.engine.kind == "vllm_inside":
        return _inside_options(config)
    options = read_options(VllmOptions, config.engine.options)
    engine_key(options)
    return options


def _inside_options(config: Config) -> InsideOptions:
    options = read_options(InsideOptions, config.engine.options)
    if config.engine.ahead:
        raise ConfigError(
            f"engine.ahead is {config.engine.ahead} and engine.kind is 'vllm_inside', which takes turns with "
            'the update. Leave engine.ahead at 0, or sample ahead on servers: engine.kind = "vllm".'
        )
    if world_size() > 1:
        raise ConfigError(
            f"engine.kind is 'vllm_inside' in a run of {world_size()} processes, and vLLM would set up "
            'ranks of its own among them. Train in one process, or sample on servers: engine.kind = "vllm".'
        )
    require_vllm()
    return options


def _local_options(config: Config) -> LocalOptions:
    options = read_options(LocalOptions, config.engine.options)
    if config.engine.ahead and world_size() > 1:
        raise ConfigError(
            f"engine.ahead is {config.engine.ahead} and engine.kind is 'local' in a run of {world_size()} "
            "processes: each would start another one with a model of its own, on the cores or GPU that it "
            'trains on. Sample ahead on servers, engine.kind = "vllm", or leave engine.ahead at 0.'
        )
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


def is_vllm(engine: Engine) -> bool:
    """What samples is vLLM, which computes in a precision and by kernels of its own."""
    if isinstance(engine, ForAll):
        return True
    inner = engine.apart if isinstance(engine, Queued) else engine
    return isinstance(inner, VllmEngine | VllmInside)


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
        return _on_servers(config, options, policy, progress)
    if isinstance(options, InsideOptions):
        return _inside(config, options, policy, progress)
    if config.engine.ahead:
        return _queued(_sampler_process(config, options, policy, progress), policy)
    engine = LocalEngine(policy, max_rows=options.max_rows, progress=progress)
    engine.tune(_num_rows(config), _products(options))
    return engine


def _on_servers(
    config: Config, options: VllmOptions, policy: Policy, progress: Callable[[int, int], None]
) -> VllmEngine | Queued | ForAll:
    """The engine on vLLM servers; ahead of the update the first of several ranks asks them for all."""
    is_ahead, ranks = config.engine.ahead > 0, world_size()
    if is_ahead and not is_first():
        return ForAll(None)
    served = VllmEngine(
        policy, options, key=engine_key(options), progress=progress, asks_for_all=is_ahead and ranks > 1
    )
    if not is_ahead:
        return served
    queued = _queued(served, policy)
    return ForAll(queued) if ranks > 1 else queued


def about_engine(options: Options) -> str | None:
    """What a person should know of the engine before the run; None where that is nothing."""
    if isinstance(options, InsideOptions) and options.sleep and device_here().type != "cuda":
        return "vLLM sleeps between phases on a GPU only: here it keeps its memory while the trainer computes"
    return None


def _inside(
    config: Config, options: InsideOptions, policy: Policy, progress: Callable[[int, int], None]
) -> VllmInside:
    """The run's model in a vLLM of this process, asleep where it can be."""
    has_gpu, rank = policy.device.type == "cuda", rank_of(config)
    settings = settings_for(
        dtype=config.model.dtype,
        max_tokens=config.model.max_tokens,
        rank=rank,
        top_k=config.sampling.top_k,
        seed=config.run.seed,
        has_gpu=has_gpu,
    )
    settings |= {"max_num_seqs": options.max_rows, "use_tqdm_on_load": False}
    settings |= _gpu_settings(options) if has_gpu else {"kv_cache_memory_bytes": _cache_bytes(options)}
    core = start(model_for(config.model.path, rank, lambda _: None, has_gpu=has_gpu), settings)
    try:
        return VllmInside(
            policy, core, sleeps=has_gpu and options.sleep, max_rows=options.max_rows, progress=progress
        )
    except BaseException:
        core.close()
        raise


def _gpu_settings(options: InsideOptions) -> dict[str, Setting]:
    return {
        "gpu_memory_utilization": options.memory_share or GPU_SHARE,
        "enable_sleep_mode": options.sleep,
        "enforce_eager": options.enforce_eager,
    }


def _cache_bytes(options: InsideOptions) -> int:
    """Of keys and values on a CPU."""
    if options.memory_share is None:
        return CPU_CACHE_GIB * 2**30
    wanted = int(options.memory_share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # A container may have far less than its machine.
    if wanted > (free := available_bytes(torch.device("cpu"))):
        raise ConfigError(
            f"engine.options.memory_share = {options.memory_share} of this machine's memory is "
            f"{wanted / 1e9:.1f} GB for keys and values, and {free / 1e9:.1f} GB are free. Set a smaller "
            "share."
        )
    return wanted


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
    weights = sum(param.nbytes for _, param in policy.trainable())
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
