"""From a configuration to the objects of a run; all that can be wrong without a model is found first."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from muster import pretrained, ways
from muster.adapters import add_lora, load_adapter
from muster.algo.advantages import normalize_then_sum, sum_then_normalize
from muster.algo.build import AXES, build
from muster.algo.kl import k1
from muster.algo.recipes import Recipe
from muster.clock import Clock, Progress
from muster.config import Config, ModelConfig
from muster.data import prompt_order, weighted_draw
from muster.devices import device_here, settling
from muster.engine_setup import (
    about_engine,
    engine_options,
    measures_products,
    refuse_uncorrected,
)
from muster.engines.base import Sampling
from muster.envs import StagePool
from muster.episodes import Scene
from muster.errors import ConfigError
from muster.evaluate import Evaluation
from muster.gather import Item
from muster.inputs import load_held_out, load_training, steps_of
from muster.judge import Judge
from muster.memory import ENOUGH_ON_CPU, available_bytes, budget_tokens
from muster.optimizer import Chosen, Rehearsed, choose, make_optimizer, rehearse
from muster.policy import Policy, enable_gradient_checkpointing
from muster.quantized import quantize, require_bitsandbytes
from muster.rewards import PoolGrader, Reward, check_columns, isolations, load_rewards
from muster.runstate import Draw, Plan, Run, State
from muster.schedule import factor
from muster.staging import Say, encode, make_collector, make_scene, start_stage
from muster.update import Budget, Objective


@dataclass(frozen=True, kw_only=True)
class Materials:
    """What a configuration names, loaded as far as no model is needed."""

    config: Config
    recipe: Recipe
    grader: PoolGrader
    """Started; whoever holds the materials closes it."""
    stage: StagePool | None = None
    """What environments live in, started; None without one."""
    scene: Scene | None = None
    """What rollouts of several turns are played on; None without an environment."""
    tokenizer: PreTrainedTokenizerBase
    items: tuple[Item, ...]
    eval_items: tuple[Item, ...]
    num_too_long: int
    """Training prompts that were left out for their length."""
    num_steps: int
    optimizer: Rehearsed

    @property
    def probes(self) -> list[tuple[int, ...]]:
        """Token ids on which an export is compared with what it was made from."""
        return [item.ids for item in self.items]

    @property
    def isolations(self) -> Mapping[str, str]:
        """What is between model-written code and the machine, by the reward that runs it."""
        return isolations(self.grader.rewards)

    def close(self) -> None:
        """Ends the processes of the rewards, and of environments."""
        self.grader.close()
        if self.stage is not None:
            self.stage.close()


def prepare(
    config: Config, say: Say, functions: Sequence[str | Callable[..., object]] | None = None
) -> Materials:
    """Reads data, rewards, recipe and tokenizer; raises before any model is loaded."""
    recipe, chosen = build_recipe(config), chosen_optimizer(config)
    if about := about_engine(engine_options(config)):
        say(about)
    refuse_uncorrected(recipe, config.engine.ahead)
    with ExitStack() as stack:
        grader = stack.enter_context(closing(start_grader(config, say, functions)))
        stage = start_stage(config, say)
        if stage is not None:
            stack.enter_context(closing(stage))
        # After the rewards' processes, which are forked before this one computes.
        materials = _read(config, say, recipe, rehearse(chosen, config.optim.lr), grader, stage)
        stack.pop_all()
        return materials


def chosen_optimizer(config: Config) -> Chosen:
    """The optimizer that the configuration names; what it and the model need is known to be installed."""
    if config.model.quantize is not None:
        require_bitsandbytes(f"model.quantize {config.model.quantize!r}")
    return choose(config.optim.name, config.optim.options, config.optim.weight_decay)


def start_grader(
    config: Config, say: Say, functions: Sequence[str | Callable[..., object]] | None = None
) -> PoolGrader:
    """The rewards in their processes, each loaded once to see that it can be; for the caller to close.

    Called before anything large is loaded: some rewards run in processes forked from this one.
    """
    chosen = config.reward
    grader = PoolGrader(
        load_rewards(functions or chosen.use, chosen.weights, chosen.options, chosen.convention),
        workers=chosen.workers,
        time_limit_s=chosen.time_limit_s,
        in_process=chosen.in_process,
    )
    try:
        for line in grader.describe():
            say(f"reward {line}")
        for name, walls in isolations(grader.rewards).items():
            say(f"reward {name} runs model-written code. {walls}")
        grader.check()
    except BaseException:
        grader.close()
        raise
    return grader


def _read(
    config: Config,
    say: Say,
    recipe: Recipe,
    optimizer: Rehearsed,
    grader: PoolGrader,
    stage: StagePool | None,
) -> Materials:
    """Data and tokenizer, checked against each other and against what the rewards need."""
    samples = load_training(config)
    held_out = load_held_out(config)
    for source, rows in ((config.data.path, samples), (config.data.eval_path or "held-out", held_out)):
        if rows:
            check_columns(grader.rewards, rows[0].columns, source)
    tokenizer = pretrained.load_tokenizer(config.model.path, say)
    items = encode(config, tokenizer, samples, say, stage)
    eval_items = encode(config, tokenizer, held_out[: config.eval.prompts], say, stage)
    num_steps = steps_of(config, len(items))
    say(f"{len(items):,} prompts to train on, {len(eval_items):,} held out, {num_steps:,} steps")
    return Materials(
        config=config,
        recipe=recipe,
        grader=grader,
        stage=stage,
        scene=make_scene(config, tokenizer, items, stage),
        tokenizer=tokenizer,
        items=items,
        eval_items=eval_items,
        num_too_long=len(samples) - len(items),
        num_steps=num_steps,
        optimizer=optimizer,
    )


def build_recipe(config: Config) -> Recipe:
    """The recipe with the choices that the configuration makes otherwise."""
    algo = config.algo
    choices = {
        axis: {"use": choice.use, **choice.params}
        for axis in AXES
        if (choice := getattr(algo, axis)) is not None
    }
    recipe = build(algo.recipe, choices)
    truncated = algo.truncated or recipe.truncated
    if config.sampling.ignore_eos and truncated != "score":
        raise ConfigError(
            f"algo.truncated is {truncated!r} (set, or the recipe's own), but with sampling.ignore_eos every "
            'completion reaches its limit: none would count as whole. Set algo.truncated = "score".'
        )
    # In the reward, k1 summed over the tokens is the unbiased estimate; k2, a recipe's default in the
    # loss, would there charge for the square.
    return replace(recipe, kl=k1) if algo.kl_in == "reward" and algo.kl is None else recipe


def load_policy(settings: ModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int, say: Say) -> Policy:
    """The model with its adapter, on the device that there is, in evaluation mode."""
    model = _load_base(settings, device_here(), say)
    if settings.adapter is not None:
        model = load_adapter(model, Path(settings.adapter))
    elif settings.lora is not None:
        lora = settings.lora
        model = add_lora(model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=seed)
    policy = Policy(
        model,
        tokenizer,
        max_tokens=settings.max_tokens,
        autocast=torch.bfloat16 if settings.dtype == "bfloat16" else None,
    )
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(policy)
    if policy.plain_because is not None:
        say(f"prompts are not shared within a group, plain padded rows are used: {policy.plain_because}")
    return policy


def _load_base(settings: ModelConfig, device: torch.device, say: Say) -> PreTrainedModel:
    """The model in float32, or its linear layers quantised, on the device."""
    if settings.quantize is None:
        model = pretrained.load_model(settings.path, dtype=torch.float32, say=say)
    else:
        # In the precision it is stored in: twice the memory would be needed only until it is quantised.
        model = pretrained.load_model(settings.path, dtype="auto", say=say)
        say(quantize(model, settings.quantize, device))
    torch.nn.Module.to(model, device)
    return model


def assemble(materials: Materials, policy: Policy, progress: Progress) -> Run:
    """The run at its start: step 0, a fresh optimizer, the reference taken from the policy as it is."""
    config, recipe = materials.config, materials.recipe
    clock = Clock(progress, settling(policy.device))
    ways.choose(policy, may_measure=measures_products(config))
    sampling = make_sampling(config, policy)
    plan = make_plan(config, recipe, materials.num_steps)
    kl_in_loss = config.algo.kl_coef if config.algo.kl_in == "loss" else 0.0
    return Run(
        policy=policy,
        optimizer=make_optimizer(policy, materials.optimizer.chosen, lr=config.optim.lr),
        collector=make_collector(
            config, policy, materials.grader, materials.num_steps, clock, materials.scene
        ),
        items=materials.items,
        draw=make_draw(config, [item.sample.id for item in materials.items]),
        sampling=sampling,
        judge=make_judge(config, recipe, weights_of(materials.grader.rewards)),
        objective=Objective(
            recipe=recipe,
            temperature=sampling.temperature,
            kl_coef=kl_in_loss,
            entropy_coef=config.algo.entropy_coef,
        ),
        plan=plan,
        rate=make_rate(config, plan),
        budget=make_budget(config, policy, materials.optimizer),
        reference=policy.snapshot() if config.algo.kl_coef else None,
        levels={reward.name: reward.levels for reward in materials.grader.rewards if reward.levels},
        evaluation=make_evaluation(config, materials.eval_items, sampling, materials.num_steps)
        if materials.eval_items
        else None,
        clock=clock,
    )


def make_draw(config: Config, sample_ids: Sequence[str]) -> Draw:
    """How the prompts of a step are chosen: each once per epoch, or by what they have taught."""
    seed, shuffles = config.run.seed, config.data.draw != "in_order"

    def in_turn(state: State, count: int, _: Sequence[int]) -> list[int]:
        return prompt_order(len(sample_ids), seed, state.drawn, count, shuffle=shuffles)

    def by_signal(state: State, count: int, taken: Sequence[int]) -> list[int]:
        return weighted_draw(state.history.weights(sample_ids), seed, state.drawn, count, taken)

    return by_signal if config.data.draw == "by_signal" else in_turn


def make_sampling(config: Config, policy: Policy) -> Sampling:
    """Every sampling field set by us; a model's own generation defaults never win."""
    chosen = config.sampling
    return Sampling(
        group_size=chosen.group_size,
        max_tokens=chosen.max_tokens,
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        min_p=chosen.min_p,
        stop_ids=pretrained.stop_ids(policy.base, policy.tokenizer),
        stop_strings=chosen.stop,
        ignore_eos=chosen.ignore_eos,
    )


def make_evaluation(config: Config, items: Sequence[Item], sampling: Sampling, num_steps: int) -> Evaluation:
    """The held-out prompts under the training settings."""
    return Evaluation(
        items=items,
        sampling=replace(sampling, group_size=config.eval.group_size, max_tokens=config.eval_max_tokens),
        seed=config.run.seed,
        every=config.eval.every,
        at_start=config.eval.at_start,
        num_steps=num_steps,
    )


def weights_of(rewards: Sequence[Reward]) -> dict[str, float]:
    """What each reward counts in the sum, by name."""
    return {reward.name: reward.weight for reward in rewards}


def make_judge(config: Config, recipe: Recipe, weights: dict[str, float]) -> Judge:
    """How rewards, whose weights go by name, become advantages."""
    truncated = config.algo.truncated or recipe.truncated
    limit = config.sampling.max_tokens
    zone = config.algo.overlong_zone or max(1, limit // 5)
    combine = sum_then_normalize if config.reward.combine == "sum_then_normalize" else normalize_then_sum
    return Judge(
        advantage=recipe.advantage,
        combine=combine,
        weights=weights,
        mask_truncated=truncated == "mask",
        overlong=(limit, zone) if truncated == "penalize" else None,
    )


def make_plan(config: Config, recipe: Recipe, num_steps: int) -> Plan:
    """The numbers of the run."""
    algo = config.algo
    return Plan(
        seed=config.run.seed,
        num_steps=num_steps,
        prompts_per_step=config.sampling.prompts_per_step,
        minibatches=algo.minibatches,
        passes=algo.passes,
        sync_every=config.sampling.sync_every,
        ahead=config.engine.ahead,
        resample=recipe.resample if algo.resample is None else algo.resample,
        kl_in_reward=algo.kl_coef if algo.kl_in == "reward" else 0.0,
        max_grad_norm=config.optim.max_grad_norm,
        max_skipped=config.optim.max_skipped,
        max_failed_share=config.reward.max_failed_share,
        max_mismatch=config.engine.max_mismatch,
    )


def make_rate(config: Config, plan: Plan) -> Callable[[int], float]:
    """Learning rate by update; warm-up is given in steps."""
    optim = config.optim
    per_step = plan.minibatches * plan.passes
    warmup = optim.warmup if isinstance(optim.warmup, int) else round(optim.warmup * plan.num_steps)
    shape = partial(
        factor,
        num_updates=plan.num_steps * per_step,
        warmup=warmup * per_step,
        shape=optim.schedule,
        final=optim.final_fraction,
    )
    return lambda update: optim.lr * shape(update)


def make_budget(config: Config, policy: Policy, optimizer: Rehearsed) -> Budget:
    """Tokens of one forward pass in training: those configured, or what the memory there is allows."""
    return Budget(
        tokens=config.run.budget_tokens or _fitting_tokens(config, policy, optimizer),
        enough=ENOUGH_ON_CPU if policy.device.type == "cpu" else None,
    )


def _fitting_tokens(config: Config, policy: Policy, optimizer: Rehearsed) -> int:
    trainable = sum(param.nbytes for _, param in policy.trainable())
    copies = 1 + optimizer.state_share + (config.algo.kl_coef > 0) + 2 * (config.sampling.sync_every > 1)
    # Of every step that is sampled ahead the weights, for the proof and on their way.
    copies += 2 * config.engine.ahead
    return budget_tokens(
        policy.base.config.get_text_config(),
        available_bytes(policy.device),
        # Gradients and the optimizer's state; the reference; where the sampler lags, its weights, which
        # both the engine and the run's state hold.
        reserved_bytes=int(copies * trainable),
        gradient_checkpointing=config.model.gradient_checkpointing,
        itemsize=2 if policy.autocast is not None else 4,
    )
